// Buttons and dialogs for what the user may change. The console says which actions exist. Without actions, the console only reads.

import { h, notice, show } from "./dom.js";
import { Refused } from "./live.js";

let known = { actions: [], token: "", user: "" };
const dialog = document.getElementById("action");
const place = document.getElementById("user");

async function answer(response) {
  const value = await response.json();
  if (!response.ok) throw new Refused(value, response.status);
  return value;
}

function remember(value) {
  known = { ...known, ...value };
  show(place, known.user ? [h("span", { class: "small dim" }, known.user), " ", h("button", { type: "button", class: "quiet small", onclick: signOut }, "Sign out")] : null);
}

// Asks which actions exist, with a new session if the former one has ended.
export const load = async () => remember(await answer(await fetch("/api/actions")));

async function send(address, values) {
  const post = () => fetch(address, { method: "POST", headers: { "Content-Type": "application/json", "X-RocketSim-Token": known.token }, body: JSON.stringify(values) });
  try {
    return await answer(await post());
  } catch (error) {
    if (error.kind !== "NoSession") throw error;
    await load();
    return answer(await post());
  }
}

const signIn = async (access_key, secret_key) => remember(await send("/api/keys", { access_key, secret_key }));
const signOut = () => signIn("", "").catch((error) => alert(error.message));

// Makes the buttons for the actions of a place. `fixed` is the name that the page knows already, for example a topic's.
// `settings` are the present values, of which only changed ones are sent. `proposals` are the first values of other inputs.
export function buttons(where, { fixed = "", settings = {}, proposals = {}, state = "" } = {}) {
  const fitting = known.actions.filter((action) => action.place === where && (!action.states.length || action.states.includes(state)));
  return fitting.map((action) => h("button", { type: "button", class: "small", "data-key": `${action.name} ${fixed}`, onclick: () => open(action, fixed, settings, proposals) }, action.title));
}

function input(field, settings, proposals) {
  const value = String(settings[field.name] ?? proposals[field.name] ?? field.value);
  const attributes = { name: field.name, "data-was": field.name in settings ? value : null, required: true };
  const made = field.choices.length
    ? h("select", attributes, field.choices.map((choice) => h("option", { value: choice, selected: choice === value }, choice)))
    : h("input", { ...attributes, type: field.kind, value, step: field.kind === "datetime-local" ? "1" : null, min: field.kind === "number" ? "0" : null, autocomplete: "off" });
  return h("label", { class: "field" }, field.label, made);
}

// Only what the user has changed is sent, so that two users do not undo each other's settings.
function changed(form) {
  const inputs = [...form.querySelectorAll("[name]")].filter((one) => one.dataset.was !== one.value);
  return Object.fromEntries(inputs.map((one) => [one.name, one.type === "datetime-local" ? String(new Date(one.value).getTime()) : one.value]));
}

function open(action, fixed, settings, proposals) {
  const said = h("div");
  const keys = h("div", { class: "stack" });
  const confirm = h("button", { type: "submit", class: action.is_dangerous ? "primary danger" : "primary" }, action.title);
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const fields = h("div", { class: "stack" }, action.fields.map((field) => input(field, settings, proposals)));
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); run(); } },
    h("h2", { id: "action-title" }, fixed ? `${action.title}: ${fixed}` : action.title), h("p", null, action.does), fields, keys, said, h("div", { class: "buttons" }, close, confirm));

  async function run() {
    confirm.disabled = true;
    show(said, notice("Waiting for the cluster …"));
    try {
      const [access, secret] = keys.querySelectorAll("input");
      if (access) {
        await signIn(access.value, secret.value);
        show(keys);
      }
      const { done } = await send(`/api/actions/${action.name}`, { ...changed(fields), ...(action.fixed ? { [action.fixed]: fixed } : {}) });
      show(said, notice(done, "good"));
      show(fields);
      confirm.remove();
      close.textContent = "Close";
    } catch (error) {
      show(said, notice(error.message, "critical"));
      if (error.kind === "AccessDenied" && !keys.firstChild) {
        show(keys, h("label", { class: "field" }, "your access key", h("input", { autocomplete: "username", required: true })),
          h("label", { class: "field" }, "your secret key", h("input", { type: "password", autocomplete: "off", required: true })));
      }
    } finally {
      confirm.disabled = false;
    }
  }

  show(dialog, form);
  dialog.showModal();
}
