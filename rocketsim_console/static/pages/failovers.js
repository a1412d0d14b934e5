import { h, show } from "../dom.js";
import { timeline } from "../timeline.js";

export const title = () => "Failovers";

export function open(page) {
  const list = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Failovers"), h("span", { class: "dim small" }, "since the console was started")), list);
  page.follow("failovers", {}, (value) => show(list, h("h2", null, "Timeline"), timeline(value.events.slice().reverse())));
}
