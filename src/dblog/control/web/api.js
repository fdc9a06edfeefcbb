// Requests to the API, repeated reads, the event stream, and whether the server answers.

const PREFIX = "/api/v1";
const SLOW_SECONDS = 10;

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.error ?? `the server answered with status ${status}`);
    this.status = status;
    this.hint = problem?.hint ?? null;
  }
}

export const session = { role: "reader", name: "", token: false };

/** Whether the server answers: `at` is when it last did, `lost` since when it does not. */
export const link = { at: null, lost: null, listeners: new Set() };

function answered(ok) {
  const now = Date.now() / 1000;
  if (ok) {
    link.at = now;
    link.lost = null;
  } else link.lost ??= now;
  for (const listener of link.listeners) listener(link);
}

let signedOut = () => {};
export function onSignedOut(listener) {
  signedOut = listener;
}

export async function request(method, path, { query = {}, body } = {}) {
  const url = new URL(PREFIX + path, location.origin);
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null) url.searchParams.set(name, value);
  const headers = { "x-dblog-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(SLOW_SECONDS * 1000),
    });
  } catch (error) {
    answered(false);
    throw new ApiError(0, { error: "the server does not answer", hint: String(error.message) });
  }
  answered(response.status !== 503);
  const content = await response.json().catch(() => null);
  if (response.status === 401 && path !== "/session") signedOut();
  if (!response.ok) throw new ApiError(response.status, content);
  return content;
}

export const get = (path, query) => request("GET", path, { query });

/** Read again and again while the tab is visible: `show(result)` after each success, `failed(error)` after each failure. */
export function repeat(read, show, { every = 2000, failed = () => {} } = {}) {
  let ended = false;
  let timer = null;
  let turns = 0; // a later turn replaces one that still waits for its answer
  async function turn() {
    clearTimeout(timer);
    const mine = ++turns;
    const valid = () => !ended && mine === turns;
    if (!document.hidden) {
      try {
        const found = await read();
        if (valid()) show(found);
      } catch (error) {
        if (valid()) failed(error);
      }
    }
    if (valid()) timer = setTimeout(turn, link.lost ? Math.min(every, 2000) : every);
  }
  const visible = () => !document.hidden && turn();
  document.addEventListener("visibilitychange", visible);
  turn();
  return {
    now: turn,
    close() {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", visible);
    },
  };
}

/** The events of a pipeline: `each(number, event)` in order. `lost(count)` if some are missing. The browser connects again. */
export function events(pipeline, { last = 0, each, lost, state }) {
  let source = null;
  let seen = null;
  let ended = false;
  let timer = null;
  function open() {
    const url = new URL(PREFIX + "/events", location.origin);
    url.searchParams.set("pipeline", pipeline);
    if (seen === null) url.searchParams.set("last", last);
    else url.searchParams.set("after", seen);
    source = new EventSource(url);
    source.onopen = () => state(true);
    source.onmessage = (message) => {
      const number = Number(message.lastEventId);
      if (seen !== null && number > seen + 1) lost(number - seen - 1);
      if (seen !== null && number <= seen) seen = number - 1; // another store: its numbers begin again
      seen = number;
      each(number, JSON.parse(message.data));
    };
    const again = () => {
      source.close();
      state(false);
      if (!ended) timer = setTimeout(open, 1500);
    };
    source.addEventListener("dropped", again);
    source.onerror = again;
  }
  open();
  return {
    close() {
      ended = true;
      clearTimeout(timer);
      source.close();
    },
  };
}
