import { buttons } from "../actions.js";
import { badge, bytes, h, moment, number, path, rate, show, table } from "../dom.js";
import { filters, pages } from "../lists.js";

export const title = () => "Topics";
const KINDS = ["users", "retry", "dead letters", "system", "all"];

export function open(page) {
  const list = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Topics"), h("span", { class: "spacer" }), buttons("topics")), filters(page, "Search topics", { kind: KINDS }), list);
  page.follow("topics", { q: page.values.q, page: page.values.page, kind: page.values.kind }, (value) => show(list,
    table("Topics", [
      { title: "topic", class: "name", cell: (row) => [h("a", { href: path("topics", row.topic) }, row.topic), row.kind === "users" ? null : [" ", badge(row.kind)], row.trouble ? [" ", h("span", { class: "small dim" }, row.trouble)] : null] },
      { title: "queues", class: "number", cell: (row) => number(row.queues) },
      { title: "messages", class: "number", cell: (row) => number(row.messages) },
      { title: "size", class: "number hide-small", cell: (row) => bytes(row.bytes) },
      { title: "rate", class: "number", cell: (row) => rate(row.rate) },
      { title: "last message", class: "number hide-small", cell: (row) => (row.last_ms ? moment(row.last_ms) : "–") },
    ], value.rows, (row) => page.go(path("topics", row.topic))),
    pages(page, value)));
}
