// Chooses the page for the URL, and has what all pages share: links, keyboard shortcuts, theme, and the sign of a live page.

import { load } from "./actions.js";
import { h, notice, show } from "./dom.js";
import { follow } from "./live.js";
import * as failovers from "./pages/failovers.js";
import * as group from "./pages/group.js";
import * as groups from "./pages/groups.js";
import * as messages from "./pages/messages.js";
import * as overview from "./pages/overview.js";
import * as topic from "./pages/topic.js";
import * as topics from "./pages/topics.js";

const ROUTES = [
  [/^\/$/, overview], [/^\/topics$/, topics], [/^\/topics\/(.+)$/, topic], [/^\/groups$/, groups], [/^\/groups\/(.+)$/, group],
  [/^\/messages$/, messages], [/^\/failovers$/, failovers],
];
const main = document.getElementById("main");
const sign = document.getElementById("live");
let ends = [];  // functions that end the requests of the present page

function live(state) {
  sign.className = `live ${state}`;
  sign.textContent = { on: "live", off: "connection lost", "": "" }[state] ?? "";
}

// Makes the object that a page gets: its part of the URL, its query, and functions that work until the user leaves the page.
function page(name, values) {
  return {
    name, values, main, go,
    follow(view, asked, shown) {
      const refusal = h("div");
      main.prepend(refusal);
      ends.push(follow(view, asked,
        (value) => { show(refusal); shown(value); },
        (trouble) => show(refusal, notice(trouble.message, "critical")), live));
    },
    onLeave(end) { ends.push(end); },
    set(changes) { go(`${location.pathname}${withChanges(changes)}`, true); },
  };
}

function withChanges(changes) {
  const values = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) value === "" || value === null ? values.delete(name) : values.set(name, value);
  const text = values.toString();
  return text ? `?${text}` : "";
}

function render({ focus = true } = {}) {
  for (const end of ends.splice(0)) end();
  live("");
  const found = ROUTES.map(([pattern, module]) => [pattern.exec(location.pathname), module]).find(([match]) => match);
  show(main);
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.pathname === "/" ? location.pathname === "/" : location.pathname.startsWith(link.pathname);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (!found) {
    show(main, notice("This page does not exist.", "warning"));
    return;
  }
  const name = found[0][1] === undefined ? "" : decodeURIComponent(found[0][1]);
  const title = found[1].title(name);
  document.title = `${title} · RocketSim`;
  found[1].open(page(name, Object.fromEntries(new URLSearchParams(location.search))));
  if (focus) main.focus({ preventScroll: true });
}

export function go(address, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  render({ focus: !replace });
  if (!replace) scrollTo(0, 0);
}

addEventListener("popstate", () => render());
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || link.origin !== location.origin || link.hasAttribute("download") || link.getAttribute("href").startsWith("#")) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.pathname + link.search);
});

// --- theme and shortcuts -------------------------------------------------------------------------------------------------

function isDark() {
  return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function otherTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* without storage, the choice lasts until the page is closed */ }
}
document.getElementById("theme").addEventListener("click", otherTheme);

const JUMPS = { o: "/", t: "/topics", g: "/groups", m: "/messages", f: "/failovers" };
const KEYS = [["g then o, t, g, m, f", "go to a page"], ["/", "go to the search field"], ["d", "switch between light and dark"], ["?", "show this list"]];
const help = document.getElementById("help");
function showHelp() {
  show(help, h("h2", { id: "help-title" }, "Keyboard shortcuts"), h("dl", { class: "facts" }, KEYS.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => help.close() }, "Close")));
  help.showModal();
}
document.getElementById("keys").addEventListener("click", showHelp);

let jumping = -Infinity;
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.timeStamp - jumping < 1200 && JUMPS[event.key]) {
    jumping = -Infinity;
    go(JUMPS[event.key]);
  } else if (event.key === "g") {
    jumping = event.timeStamp;
  } else if (event.key === "d") {
    otherTheme();
  } else if (event.key === "?") {
    showHelp();
  } else if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});

load().catch(() => {}).finally(render);  // without an answer the pages only read
