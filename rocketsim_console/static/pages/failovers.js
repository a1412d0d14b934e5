import { badge, bytes, h, number, show, table } from "../dom.js";
import { timeline } from "../timeline.js";

export const title = () => "Failovers";

export function open(page) {
  const list = h("section", { class: "card" });
  const epochs = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Failovers")), list, epochs);
  page.follow("failovers", {}, (value) => {
    show(list, h("div", { class: "head" }, h("h2", null, "Timeline"), h("span", { class: "dim small" }, "since the console was started")), timeline(value.events.slice().reverse()));
    show(epochs, h("div", { class: "head" }, h("h2", null, "Epochs"), h("span", { class: "dim small" }, "in the brokers\u2019 logs, also from before the console was started; they begin at an offset of the log")), table("Epochs", [
      { title: "name", cell: (row) => row.pair },
      { title: "epoch", class: "name", cell: (row) => [row.epoch, row.promotion ? [" ", badge("promotion", "accent")] : null] },
      { title: "begins at", class: "number", cell: (row) => number(row.start) },
      { title: "bytes in it", class: "number hide-small", cell: (row) => bytes(row.end - row.start) },
      { title: "told by", class: "mono hide-small", cell: (row) => row.told_by },
    ], value.epochs));
  });
}
