// Makes elements. Text is set as text, never as HTML, because names and bodies may contain anything.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

// Replaces the children of `place`. If the focused child has a `data-key`, the new child with this key gets the focus.
export function show(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (focused) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

const whole = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 100 ? whole.format(Math.round(value)) : value >= 10 ? value.toFixed(0) : value ? value.toFixed(1) : "0"}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  for (; value >= 1024 && unit < 5; unit++) value /= 1024;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

const two = (value) => String(value).padStart(2, "0");
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
export function when(ms) {
  if (!ms || ms <= 0) return "–";
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}
export function moment(ms) {  // with the date, unless it is today
  return ms > 0 && new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : when(ms);
}

export const badge = (text, look = "") => h("span", { class: `badge ${look}` }, text);
export const tile = (label, value) => h("div", { class: "tile" }, h("div", { class: "value" }, value), h("div", { class: "label" }, label));
export const notice = (text, look = "") => h("p", { class: `notice ${look}`, role: look === "critical" ? "alert" : undefined }, text);
export const path = (page, name) => `/${page}/${encodeURIComponent(name)}`;

// A table. Columns are {title, cell(row), class}. `link(row)` is called when the user clicks on the row.
export function table(caption, columns, rows, link) {
  if (!rows.length) return h("p", { class: "empty" }, "Nothing to show.");
  return h("div", { class: "scroll" }, h("table", null,
    h("caption", null, caption),
    h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.class }, column.title)))),
    h("tbody", null, rows.map((row) => h("tr",
      { class: link ? "link" : undefined, onclick: link ? (event) => { if (!event.target.closest("a, button")) link(row); } : undefined },
      columns.map((column) => h("td", { class: column.class }, column.cell(row))))))));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}
