import { Chart } from "../chart.js";
import { buttons } from "../actions.js";
import { badge, bytes, h, notice, number, rate, show, table, tile } from "../dom.js";
import { ask } from "../live.js";
import { timeline } from "../timeline.js";

export const title = () => "Overview";

const LEVELS = { ok: ["good", "in order"], warning: ["warning", "degraded"], critical: ["critical", "not writable"] };
const STATES = { master: "accent", slave: "", silent: "critical", away: "critical" };
const WINDOW_MS = 5 * 60_000;
const KEPT = 900;

export function open(page) {
  const tiles = h("div", { class: "tiles" });
  const trouble = h("div");
  const pairs = h("div", { class: "grid" });
  const charts = {
    in: new Chart("Messages sent per second", (value) => rate(value)),
    out: new Chart("Messages read per second", (value) => rate(value)),
    behind: new Chart("Slaves behind their masters", (value) => bytes(value)),
  };
  const happened = h("section", { class: "card" });
  page.main.append(h("div", { class: "title" }, h("h1", null, "Overview")), trouble, tiles, h("div", { class: "grid" }, Object.values(charts).map((chart) => chart.element)), pairs, happened);

  let points = [], events = [];
  const colors = new Map();

  function draw(value) {
    const addresses = value.pairs.flatMap((pair) => pair.brokers.map((broker) => [broker.address, `${pair.name} ${short(broker.address)}`]));
    for (const [address] of addresses) if (!colors.has(address)) colors.set(address, colors.size % 8);
    const to = value.point.t, from = Math.max(to - WINDOW_MS, points[0]?.t ?? to);
    for (const [name, chart] of Object.entries(charts)) {
      const series = addresses.map(([address, label]) => ({ label, color: colors.get(address), points: points.map((point) => [point.t, point[name]?.[address]]) }));
      chart.draw(series.filter((one) => one.points.some(([, known]) => known !== null && known !== undefined)), events, from, to);
    }
  }

  function shown(value) {
    if (points.at(-1)?.t !== value.point.t) points.push(value.point);
    points.splice(0, points.length - KEPT);
    const last = events.at(-1)?.at_ms ?? 0;
    events.push(...value.events.filter((event) => event.at_ms > last));
    const brokers = value.pairs.flatMap((pair) => pair.brokers);
    const sum = (name) => brokers.reduce((total, broker) => total + (broker[name] ?? 0), 0);
    show(trouble, value.trouble ? notice(value.trouble, "critical") : null);
    show(tiles, tile("broker names", number(value.pairs.length)), tile("brokers that answer", `${brokers.filter((one) => one.state === "master" || one.state === "slave").length} of ${brokers.length}`),
      tile("masters that take sends", `${value.pairs.filter((pair) => pair.level !== "critical").length} of ${value.pairs.length}`),
      tile("sent", rate(sum("in"))), tile("read", rate(sum("out"))));
    show(pairs, value.pairs.map(pairCard));
    show(happened, h("div", { class: "head" }, h("h2", null, "Last events"), h("a", { href: "/failovers", class: "small" }, "all")), timeline(events.slice(-8).reverse()));
    draw(value);
  }

  ask("history").then((history) => { points = history.points; events = history.events; }).catch(() => {}).finally(() => page.follow("overview", {}, shown));
}

export const short = (address) => address.replace(/^(127\.0\.0\.1|localhost):/, ":");

function pairCard(pair) {
  const [look, word] = LEVELS[pair.level];
  return h("section", { class: "card pair", "data-pair": pair.name, "data-level": pair.level },
    h("div", { class: "head" }, h("h2", null, pair.name), badge(word, look), h("span", { class: "dim small" }, `epoch ${pair.epoch}`)),
    h("p", { class: "small dim" }, pair.summary),
    table(`Brokers of ${pair.name}`, [
      { title: "broker", cell: (one) => h("span", { class: "mono", title: one.line || one.trouble }, one.address) },
      { title: "state", cell: (one) => [badge(one.state === "away" ? "gone" : one.state, STATES[one.state]), " ", one.state === "master" && !one.writable ? badge("takes no sends", "critical") : null] },
      { title: "in sync", cell: (one) => (one.in_sync === null ? "" : one.in_sync ? badge("yes", "good") : badge("no", "warning")) },
      { title: "behind", class: "number", cell: (one) => (one.behind === null ? "" : bytes(one.behind)) },
      { title: "sent", class: "number", cell: (one) => (one.state === "master" ? rate(one.in) : "") },
      { title: "read", class: "number hide-small", cell: (one) => (one.in !== undefined || one.out !== null ? rate(one.out) : "") },
      { title: "disk", class: "number hide-small", cell: (one) => (one.disk === null ? "" : `${Math.round(one.disk * 100)} %`) },
      { title: "", cell: (one) => h("span", { class: "buttons" }, buttons("broker", { fixed: one.address, state: one.state })) },
    ], pair.brokers));
}
