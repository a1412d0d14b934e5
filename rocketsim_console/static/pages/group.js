import { buttons } from "../actions.js";
import { Chart } from "../chart.js";
import { badge, duration, facts, h, notice, number, path, rate, show, table, tile } from "../dom.js";

export const title = (name) => name;

const WINDOW_MS = 5 * 60_000;

export function open(page) {
  const tiles = h("div", { class: "tiles" });
  const history = new Chart("Lag by broker name, since this page was opened", number);
  const queues = h("section", { class: "card" });
  const rest = h("div", { class: "grid" });
  const actions = h("span", { class: "buttons" });
  page.main.append(h("div", { class: "title" }, h("h1", null, page.name), actions), tiles, history.element, queues, rest);
  const points = new Map();  // broker name -> [[ms, lag]]
  page.follow("group", { name: page.name }, (value) => {
    const consumed = value.rows.reduce((total, row) => total + (row.rate ?? 0), 0);
    const topics = value.by_topic.filter((one) => one.kind === "users");
    show(actions, buttons("group", { fixed: page.name, settings: value.settings ?? {}, proposals: { topic: topics[0]?.topic ?? "" } }));
    show(tiles, tile("lag", number(value.lag)), tile("age of the lag", duration(value.age_ms)), tile("consumed", rate(consumed)), tile("queues", number(value.rows_total)),
      tile("dead letters", value.dead_letters ? number(value.dead_letters.messages) : "0"));
    draw(history, points, value.rows);
    const most = Math.max(1, ...value.rows.map((row) => row.lag));
    show(queues, h("h2", null, "Lag by queue"), value.rows.length < value.rows_total ? notice(`The first ${value.rows.length} of ${value.rows_total} queues are shown.`) : null, table("Lag by queue", [
      { title: "topic", class: "name", cell: (row) => [h("a", { href: path("topics", row.topic) }, row.topic), row.topic.startsWith("%RETRY%") ? [" ", badge("retries")] : null] },
      { title: "broker", class: "hide-small", cell: (row) => row.broker },
      { title: "queue", class: "number", cell: (row) => number(row.queue) },
      { title: "end", class: "number hide-small", cell: (row) => number(row.end) },
      { title: "committed", class: "number hide-small", cell: (row) => (row.committed < 0 ? "–" : number(row.committed)) },
      { title: "lag", class: "number", cell: (row) => [bar(row.lag / most), number(row.lag)] },
      { title: "age", class: "number", cell: (row) => duration(row.age_ms) },
      { title: "consumed", class: "number hide-small", cell: (row) => rate(row.rate) },
      { title: "", cell: (row) => [row.told_by ? badge("from the slave", "warning") : null, row.resets ? badge(`reset ${row.resets}×`) : null] },
    ], value.rows));
    const config = value.settings;
    show(rest,
      h("section", { class: "card" }, h("h2", null, "Topics"), table("Topics", [
        { title: "topic", class: "name", cell: (row) => [h("a", { href: path("topics", row.topic) }, row.topic), row.kind === "users" ? null : [" ", badge(row.kind)]] },
        { title: "lag", class: "number", cell: (row) => number(row.lag) },
        { title: "age", class: "number", cell: (row) => duration(row.age_ms) },
      ], value.by_topic), deadLetters(value.dead_letters)),
      clients(value.clients),
      h("section", { class: "card" }, h("h2", null, "Settings"), config ? facts([
        ["may consume", config.consume_enable ? "yes" : badge("no", "warning")], ["in order", config.consume_message_orderly ? "yes" : "no"],
        ["retries at most", number(config.retry_max_times)], config.group_retry_policy ? ["retry policy", h("code", null, config.group_retry_policy)] : null,
        ["reads from", `broker id ${config.broker_id}, or ${config.which_broker_when_consume_slowly} when it has fallen behind`],
      ]) : h("p", { class: "dim" }, "The brokers have offsets of this group, but no settings.")));
  });
}

// Adds the present lags to the points, and draws those of the last minutes.
function draw(chart, points, rows) {
  const now = Date.now(), lags = new Map();
  for (const row of rows) lags.set(row.broker, (lags.get(row.broker) ?? 0) + row.lag);
  for (const [broker, lag] of lags) points.set(broker, [...(points.get(broker) ?? []).filter(([ms]) => ms >= now - WINDOW_MS), [now, lag]]);
  const first = Math.min(now, ...[...points.values()].map((one) => one[0][0]));
  chart.draw([...points.keys()].sort().map((broker, at) => ({ label: broker, color: at % 8, points: points.get(broker) })), [], first, now);
}

const WAYS = { pop: "popped", commit: "committed", heartbeat: "sent a heartbeat" };

function clients({ rows, total, trouble }) {
  return h("section", { class: "card" }, h("h2", null, "Clients"), trouble ? notice(trouble, "warning") : null,
    rows.length < total ? notice(`The first ${rows.length} of ${total} are shown.`) : null, table("Clients", [
      { title: "client", class: "name", cell: (row) => h("span", { class: "mono" }, row.client_id) },
      { title: "broker", class: "nowrap hide-small", cell: (row) => row.broker_name },
      { title: "last call", cell: (row) => `${WAYS[row.way] ?? row.way} ${duration(row.last_ms_ago)} ago${row.way === "commit" ? `, ${number(row.messages)} messages` : ""}` },
    ], rows));
}

function bar(part) {
  const fill = h("i");
  fill.style.width = `${Math.round(part * 100)}%`;
  return h("span", { class: "bar-fill hide-small", "aria-hidden": "true" }, fill);
}

function deadLetters(dead) {
  if (!dead) return null;
  const text = dead.trouble ?? `${number(dead.messages)} dead letters in `;
  return h("p", { class: "small" }, text, dead.trouble ? null : h("a", { href: path("topics", dead.topic) }, dead.topic));
}
