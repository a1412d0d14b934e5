// Makes the list of events that several pages show.

import { badge, clock, h, moment } from "./dom.js";

export function timeline(events) {
  if (!events.length) return h("p", { class: "empty" }, "Nothing has changed since the console was started.");
  return h("ol", { class: "timeline" }, events.map((event) => h("li", { class: event.weight },
    h("time", { datetime: new Date(event.at_ms).toISOString() }, moment(event.at_ms) || clock(event.at_ms)),
    h("b", null, event.pair), " ", h("span", { class: "mono" }, event.address), " ", event.text, " ", badge(event.kind, event.weight === "note" ? "" : event.weight))));
}
