import { buttons } from "../actions.js";
import { badge, bytes, duration, facts, h, moment, notice, number, path, rate, show, table, tile } from "../dom.js";

export const title = (name) => name;

export function open(page) {
  const tiles = h("div", { class: "tiles" });
  const rest = h("div", { class: "grid" });
  const queues = h("section", { class: "card" });
  const actions = h("span");
  page.main.append(h("div", { class: "title" }, h("h1", null, page.name), actions, h("span", { class: "spacer" }), h("a", { href: `/messages?topic=${encodeURIComponent(page.name)}` }, "messages")), tiles, queues, rest);
  page.follow("topic", { name: page.name }, (value) => {
    const sum = (name) => value.queues.reduce((total, queue) => total + (queue[name] ?? 0), 0);
    const last = Math.max(0, ...value.queues.map((queue) => queue.last_ms));
    show(actions, buttons("topic", { fixed: page.name, settings: value.settings[0] }));
    show(tiles, tile("queues", number(value.queues_total)), tile("messages", number(sum("max") - sum("min"))), tile("size", bytes(sum("bytes"))), tile("sent", rate(sum("rate"))), tile("last message", last ? moment(last) : "–"));
    show(queues, h("h2", null, "Queues"), value.queues.length < value.queues_total ? notice(`The first ${value.queues.length} are shown.`) : null, table("Queues", [
      { title: "broker", cell: (row) => row.broker },
      { title: "queue", class: "number", cell: (row) => h("a", { href: `/messages?topic=${encodeURIComponent(page.name)}&queue=${encodeURIComponent(`${row.broker}:${row.queue}`)}` }, number(row.queue)) },
      { title: "first", class: "number", cell: (row) => number(row.min) },
      { title: "end", class: "number", cell: (row) => number(row.max) },
      { title: "messages", class: "number", cell: (row) => number(row.max - row.min) },
      { title: "size", class: "number hide-small", cell: (row) => bytes(row.bytes) },
      { title: "rate", class: "number", cell: (row) => rate(row.rate) },
      { title: "last message", class: "number hide-small", cell: (row) => (row.last_ms ? moment(row.last_ms) : "–") },
      { title: "", cell: (row) => [row.writable ? null : badge("read only", "warning"), row.served_by ? badge("from the slave", "warning") : null] },
    ], value.queues));
    show(rest,
      h("section", { class: "card" }, h("h2", null, "Consumer groups"), table("Consumer groups", [
        { title: "group", class: "name", cell: (row) => h("a", { href: path("groups", row.group) }, row.group) },
        { title: "lag", class: "number", cell: (row) => number(row.lag) },
        { title: "age", class: "number", cell: (row) => duration(row.age_ms) },
      ], value.groups, (row) => page.go(path("groups", row.group)))),
      h("section", { class: "card" }, h("h2", null, "Settings"), value.settings.map((one) => facts([
        ["broker", h("span", { class: "mono" }, one.at)], ["queues to read, to write", `${one.read_queue_nums}, ${one.write_queue_nums}`],
        ["permission", { 2: "write", 4: "read", 6: "read and write" }[one.perm] ?? String(one.perm)], one.order ? ["order", "ordered"] : null,
        ...Object.entries(one.attributes).map(([name, text]) => [name, text]),
      ]))));
  });
}
