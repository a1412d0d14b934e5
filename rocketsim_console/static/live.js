// Asks the console once, or follows one of its live views.

export class Refused extends Error {
  constructor(trouble, status) {
    super(trouble.message);
    this.kind = trouble.error;
    this.status = status;
  }
}

export const query = (values) => {
  const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined && value !== null)).toString();
  return text ? `?${text}` : "";
};

export async function ask(address, values = {}, signal = undefined) {
  const answer = await fetch(`/api/${address}${query(values)}`, { signal });
  const value = await answer.json();
  if (!answer.ok) throw new Refused(value, answer.status);
  return value;
}

// Calls `shown(value)` for each new value, and `refused({error, message})` when the cluster gives none. Returns a // function that ends it.
export function follow(view, values, shown, refused, state) {
  const source = new EventSource(`/live/${view}${query(values)}`);
  source.addEventListener("view", (event) => { state("on"); shown(JSON.parse(event.data)); });
  source.addEventListener("trouble", (event) => { state("on"); refused(JSON.parse(event.data)); });
  source.addEventListener("error", () => {
    state("off");
    if (source.readyState === EventSource.CLOSED) refused({ error: "Closed", message: "The console refuses this live page. Is it still running, and are not too many pages open?" });
  });
  return () => source.close();
}
