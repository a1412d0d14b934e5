// Gets data of the console: once, or as a live stream.

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

// Calls `shown(value)` for each new value, `refused({error, message})` if the cluster answers with an error, and
// `state("on")` or `state("off")` when the connection changes. Returns a function that ends the stream.
export function follow(view, values, shown, refused, state) {
  const source = new EventSource(`/live/${view}${query(values)}`);
  source.addEventListener("view", (event) => { state("on"); shown(JSON.parse(event.data)); });
  source.addEventListener("trouble", (event) => { state("on"); refused(JSON.parse(event.data)); });
  source.addEventListener("error", () => {
    state("off");
    if (source.readyState === EventSource.CLOSED) refused({ error: "Closed", message: "This page gets no live data any more. Is the console still running, or are too many pages open?" });
  });
  return () => source.close();
}
