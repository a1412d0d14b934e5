// Makes the parts that all lists have: a search field, choices, and buttons for pages.

import { h, number } from "./dom.js";

export function filters(page, label, choices = {}) {
  let later = 0;
  const field = h("input", { type: "search", value: page.values.q ?? "", placeholder: label, "aria-label": label, oninput: (event) => {
    clearTimeout(later);
    later = setTimeout(() => { page.set({ q: event.target.value, page: null }); refocus(); }, 250);
  } });
  page.onLeave(() => clearTimeout(later));
  const selects = Object.entries(choices).map(([name, values]) => h("select", { "aria-label": name, onchange: (event) => page.set({ [name]: event.target.value, page: null }) },
    values.map((value) => h("option", { value, selected: value === (page.values[name] ?? values[0]) }, value))));
  return h("form", { class: "bar", role: "search", onsubmit: (event) => event.preventDefault() }, field, selects);
}

function refocus() {  // the page is made again while the user types, which loses the focus
  const field = document.querySelector("main input[type=search]");
  field?.focus();
  field?.setSelectionRange(field.value.length, field.value.length);
}

export function pages(page, value) {
  if (value.pages < 2) return h("div", { class: "pages" }, `${number(value.total)} in all`);
  const button = (text, to) => h("button", { type: "button", disabled: to < 1 || to > value.pages, onclick: () => page.set({ page: String(to) }) }, text);
  return h("div", { class: "pages" }, `${number(value.total)} in all, page ${value.page} of ${value.pages}`, button("Previous", value.page - 1), button("Next", value.page + 1));
}
