import { badge, bytes, h, number, show, table, when } from "../dom.js";
import { timeline } from "../timeline.js";

export const title = () => "Failovers";

export function open(page) {
  const list = h("section", { class: "card" });
  const epochs = h("section", { class: "card" });
  const cuts = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Failovers")), list, epochs, cuts);
  page.follow("failovers", {}, (value) => {
    show(list, h("div", { class: "head" }, h("h2", null, "Timeline"), h("span", { class: "dim small" }, "since the console was started")), timeline(value.events.slice().reverse()));
    show(epochs, h("div", { class: "head" }, h("h2", null, "Epochs"), h("span", { class: "dim small" }, "from the brokers\u2019 logs, including epochs from before the console was started")), table("Epochs", [
      { title: "broker name", class: "nowrap", cell: (row) => row.pair },
      { title: "epoch", class: "name", cell: (row) => [row.epoch, row.promotion ? [" ", badge("promotion", "accent")] : null] },
      { title: "begins at log offset", class: "number", cell: (row) => number(row.start) },
      { title: "size", class: "number hide-small", cell: (row) => bytes(row.end - row.start) },
      { title: "reported by", class: "mono hide-small", cell: (row) => row.told_by },
    ], value.epochs));
    show(cuts, h("div", { class: "head" }, h("h2", null, "Log bytes cut off"), h("span", { class: "dim small" }, "bytes that a broker had and its master did not, kept in the folder rocketsim/diverged of the broker\u2019s store")),
      value.cuts.length ? table("Log bytes cut off", [
        { title: "broker name", class: "nowrap", cell: (row) => row.pair },
        { title: "broker", class: "mono", cell: (row) => row.address },
        { title: "when", cell: (row) => when(row.at_ms) },
        { title: "from log offset", class: "number", cell: (row) => number(row.start) },
        { title: "size", class: "number", cell: (row) => bytes(row.bytes) },
      ], value.cuts) : h("p", { class: "empty" }, "No broker keeps bytes that were cut off."));
  });
}
