// Draws a line chart of the last minutes: a line for each series, a mark for each event, and the values at the pointer.

import { clock, h, show, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 150, LEFT = 46, BOTTOM = 18, TOP = 8;

function ceiling(most) {  // a round number that is at least `most`
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((value) => value >= most) ?? most;
}

// `series`: [{label, color, points: [[ms, value or null]]}]. `events`: [{at_ms, weight, text}]. `form(value)` formats a value.
export class Chart {
  constructor(title, form) {
    this.title = title;
    this.form = form;
    this.place = h("div", { class: "chart" });
    this.legend = h("div", { class: "legend" });
    this.element = h("section", { class: "card" }, h("h2", null, title), this.place, this.legend);
    this.place.addEventListener("pointermove", (event) => this.point(event));
    this.place.addEventListener("pointerleave", () => this.point(null));
  }

  draw(series, events, from, to) {
    this.series = series;
    this.from = from;
    this.to = Math.max(to, from + 1000);
    const width = this.place.clientWidth || WIDTH;
    this.width = width;
    const most = Math.max(0, ...series.flatMap((one) => one.points.map(([, value]) => value ?? 0)));
    const top = ceiling(most);
    this.x = (ms) => LEFT + ((ms - this.from) / (this.to - this.from)) * (width - LEFT - 4);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const lines = [0, 0.5, 1].map((part) => [
      svg("line", { class: "grid-line", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }),
      svg("text", { class: "axis", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, this.form(top * part)),
    ]);
    const times = [0, 0.5, 1].map((part) => svg("text",
      { class: "axis", x: this.x(this.from + part * (this.to - this.from)), y: HEIGHT - 2, "text-anchor": ["start", "middle", "end"][2 * part] },
      clock(this.from + part * (this.to - this.from))));
    const marks = events.filter((event) => event.at_ms >= this.from && event.at_ms <= this.to).map((event) => svg("line",
      { class: `mark m-${event.weight}`, x1: this.x(event.at_ms), x2: this.x(event.at_ms), y1: TOP, y2: HEIGHT - BOTTOM },
      svg("title", null, `${clock(event.at_ms)} ${event.text}`)));
    const paths = series.map((one) => svg("path", { class: `line s${one.color}`, d: this.trace(one.points, y) }));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    show(this.place, svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": this.label() }, lines, times, marks, paths, this.cursor));
    this.tell(this.at);
  }

  trace(points, y) {  // leaves a gap where a value is missing
    let text = "", pen = false;
    for (const [ms, value] of points) {
      if (ms < this.from) continue;
      if (value === null || value === undefined) { pen = false; continue; }
      text += `${pen ? "L" : "M"}${this.x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
    }
    return text;
  }

  label() {
    return `${this.title}: ${this.series.map((one) => `${one.label} ${this.form(this.value(one, null))}`).join(", ")}`;
  }

  value(one, at) {
    if (at === null || at === undefined) return one.points.at(-1)?.[1];
    let nearest = null;
    for (const point of one.points) {
      if (nearest === null || Math.abs(point[0] - at) < Math.abs(nearest[0] - at)) nearest = point;
    }
    return nearest?.[1];
  }

  point(event) {
    if (!this.cursor) return;
    this.at = null;
    if (event) {
      const box = this.place.getBoundingClientRect();
      const part = ((event.clientX - box.left) / box.width * this.width - LEFT) / (this.width - LEFT - 4);
      if (part >= 0 && part <= 1) this.at = this.from + part * (this.to - this.from);
    }
    this.tell(this.at);
  }

  tell(at) {
    const pointed = at !== null && at !== undefined;
    this.cursor.setAttribute("visibility", pointed ? "visible" : "hidden");
    if (pointed) for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, this.x(at));
    show(this.legend, this.series.map((one) => h("span", null, h("i", { class: `s${one.color}` }), `${one.label} ${this.form(this.value(one, at))}`)),
      pointed ? h("span", null, `at ${clock(at)}`) : null);
  }
}
