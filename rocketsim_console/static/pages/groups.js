import { buttons } from "../actions.js";
import { badge, duration, h, number, path, rate, show, table } from "../dom.js";
import { filters, pages } from "../lists.js";

export const title = () => "Groups";

export function open(page) {
  const list = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Consumer groups"), h("span", { class: "spacer" }), buttons("groups")), filters(page, "Search groups"), list);
  page.follow("groups", { q: page.values.q, page: page.values.page }, (value) => show(list,
    table("Consumer groups", [
      { title: "group", class: "name", cell: (row) => [h("a", { href: path("groups", row.group) }, row.group), row.trouble ? [" ", h("span", { class: "small dim" }, row.trouble)] : null] },
      { title: "topics", class: "hide-small", cell: (row) => topicsOf(row) },
      { title: "lag", class: "number", cell: (row) => number(row.lag) },
      { title: "age", class: "number", cell: (row) => duration(row.age_ms) },
      { title: "consumed", class: "number", cell: (row) => rate(row.rate) },
    ], value.rows, (row) => page.go(path("groups", row.group))),
    pages(page, value)));
}

function topicsOf(row) {
  const own = (row.topics ?? []).filter((topic) => !topic.startsWith("%RETRY%"));
  return [own.slice(0, 3).map((topic, at) => [at ? ", " : "", h("a", { href: path("topics", topic) }, topic)]), own.length > 3 ? ` and ${own.length - 3} more` : "",
    own.length < (row.topics ?? []).length ? [" ", badge("retries")] : null];
}
