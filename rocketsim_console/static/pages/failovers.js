import { badge, bytes, h, number, show, table } from "../dom.js";
import { timeline } from "../timeline.js";

export const title = () => "Failovers";

export function open(page) {
  const list = h("section", { class: "card" });
  const epochs = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Failovers")), list, epochs);
  page.follow("failovers", {}, (value) => {
    show(list, h("div", { class: "head" }, h("h2", null, "Timeline"), h("span", { class: "dim small" }, "since the console was started")), timeline(value.events.slice().reverse()));
    show(epochs, h("div", { class: "head" }, h("h2", null, "Epochs"), h("span", { class: "dim small" }, "from the brokers\u2019 logs, including epochs from before the console was started")), table("Epochs", [
      { title: "broker name", cell: (row) => row.pair },
      { title: "epoch", class: "name", cell: (row) => [row.epoch, row.promotion ? [" ", badge("promotion", "accent")] : null] },
      { title: "begins at log offset", class: "number", cell: (row) => number(row.start) },
      { title: "size", class: "number hide-small", cell: (row) => bytes(row.end - row.start) },
      { title: "reported by", class: "mono hide-small", cell: (row) => row.told_by },
    ], value.epochs));
  });
}
