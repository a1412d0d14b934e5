import { bytes, facts, h, notice, number, path, show, table, when } from "../dom.js";
import { ask, query } from "../live.js";

export const title = () => "Messages";

const WAYS = { newest: ["the newest", null], time: ["stored from", "datetime-local"], offset: ["offset", "number"], key: ["key", "text"], id: ["message id", "text"] };

export function open(page) {
  const values = page.values;
  const form = h("form", { class: "bar", role: "search" });
  const result = h("div", { class: "stack" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Messages")), h("section", { class: "card" }, form), result);
  if (values.offset !== undefined && values.broker) {
    detail(page, result);
  } else if (values.topic) {
    search(page, result);
  }
  fill(form, page);
}

function fill(form, page) {
  const values = page.values;
  const way = WAYS[values.by] ? values.by : "newest";
  const kind = WAYS[way][1];
  const given = way === "time" && values.value ? localTime(Number(values.value)) : values.value ?? "";
  const field = (label, input) => h("label", { class: "field" }, label, input);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = Object.fromEntries(new FormData(form));
    if (asked.by === "time" && asked.value) asked.value = String(new Date(asked.value).getTime());
    page.go(`/messages${query(asked)}`);
  });
  show(form,
    field("topic", h("input", { name: "topic", type: "search", class: "wide", value: values.topic ?? "", required: true, autocomplete: "off", spellcheck: "false" })),
    field("find", h("select", { name: "by", onchange: (event) => { page.values = { ...values, ...Object.fromEntries(new FormData(form)), by: event.target.value, value: "" }; refill(form, page); } },
      Object.entries(WAYS).map(([name, [label]]) => h("option", { value: name, selected: name === way }, label)))),
    kind ? field(WAYS[way][0], h("input", { name: "value", type: kind, value: given, required: true, step: kind === "datetime-local" ? "1" : undefined, autocomplete: "off" })) : null,
    way === "key" || way === "id" ? null : field("queue", h("input", { name: "queue", value: values.queue ?? "", placeholder: way === "offset" ? "broker-a:0" : "all", required: way === "offset", autocomplete: "off" })),
    h("button", { class: "primary" }, "Find"));
}

function refill(form, page) {
  const fresh = form.cloneNode(false);
  form.replaceWith(fresh);
  fill(fresh, page);
}

function localTime(ms) {
  const at = new Date(ms);
  return new Date(ms - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function search(page, result) {
  const { topic, by = "newest", value, queue } = page.values;
  const stop = new AbortController();
  page.onLeave(() => stop.abort());
  show(result, notice("Searching …"));
  ask("messages", { topic, by, value, queue }, stop.signal).then((found) => show(result, h("section", { class: "card" },
    h("div", { class: "head" }, h("h2", null, "Found"), h("span", { class: "dim small" }, `${number(found.rows.length)} messages${found.more ? "; more exist" : ""}`), h("span", { class: "spacer" }), h("a", { href: path("topics", topic) }, "topic")),
    table("Messages", [
      { title: "stored", class: "number", cell: (row) => h("a", { href: address(row) }, when(row.stored_ms)) },
      { title: "queue", cell: (row) => `${row.broker}:${row.queue}` },
      { title: "offset", class: "number", cell: (row) => number(row.offset) },
      { title: "tags", class: "hide-small", cell: (row) => row.tags ?? "" },
      { title: "keys", class: "name hide-small", cell: (row) => row.keys ?? "" },
      { title: "size", class: "number", cell: (row) => bytes(row.bytes) },
      { title: "body", cell: (row) => h("div", { class: "preview" }, row.preview) },
    ], found.rows, (row) => page.go(address(row)))))).catch((error) => error.name === "AbortError" ? null : show(result, notice(error.message, "critical")));
}

const address = (row) => `/messages${query({ topic: row.topic, broker: row.broker, at: row.queue, offset: row.offset })}`;

function detail(page, result) {
  const { topic, broker, at, offset } = page.values;
  const place = { topic, broker, queue: at, offset };
  show(result, notice("Reading …"));
  ask("message", place).then((message) => show(result, h("section", { class: "card" },
    h("div", { class: "head" }, h("h2", null, `${message.broker}:${message.queue} offset ${number(message.offset)}`), h("span", { class: "spacer" }),
      message.offset > 0 ? h("a", { href: address({ ...message, offset: message.offset - 1 }) }, "previous") : null, h("a", { href: address({ ...message, offset: message.offset + 1 }) }, "next")),
    facts([
      ["topic", h("a", { href: path("topics", message.topic) }, message.topic)], ["message id", h("code", null, message.msg_id)], ["offset message id", h("code", null, message.offset_msg_id)],
      ["tags", message.tags ?? "–"], ["keys", message.keys ?? "–"], ["stored", `${when(message.stored_ms)} by ${message.store_host}`],
      ["born", `${when(message.born_ms)} at ${message.born_host}`], ["deliveries before", number(message.reconsume_times)], ["flag", number(message.flag)],
    ])), body(message, place), h("section", { class: "card" }, h("h2", null, "Properties"), table("Properties", [
    { title: "name", class: "name mono", cell: ([name]) => name }, { title: "value", class: "name mono", cell: ([, value]) => value },
  ], Object.entries(message.properties))))).catch((error) => show(result, notice(error.message, "critical")));
}

function body(message, place) {
  const forms = { JSON: message.body.json, text: message.body.text, hex: message.body.hex };
  const known = Object.keys(forms).filter((name) => forms[name] !== null);
  const text = h("pre");
  const tabs = h("div", { class: "tabs", role: "tablist" }, known.map((name) => h("button", { type: "button", role: "tab", onclick: () => choose(name) }, name)));
  function choose(name) {
    text.textContent = forms[name];
    text.className = name === "text" ? "wrap" : "";
    for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.textContent === name));
  }
  choose(known[0]);
  return h("section", { class: "card" }, h("div", { class: "head" }, h("h2", null, "Body"), tabs, h("span", { class: "dim small" }, message.body.shown < message.body.bytes ? `the first ${bytes(message.body.shown)} of ${bytes(message.body.bytes)}` : bytes(message.body.bytes)),
    h("span", { class: "spacer" }), h("a", { href: `/api/body${query(place)}`, download: true }, "download")), message.body.trouble ? notice(message.body.trouble, "warning") : null, text);
}
