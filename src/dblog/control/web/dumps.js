// The dumps of a pipeline: bars, rate, time left, why one waits; pause, resume, cancel; the throttle.

import { get, repeat, request, session } from "./api.js";
import { attribute, h, keyed, note, text } from "./dom.js";
import { ago, clock, number, percent, plural, rate, seconds, whole } from "./format.js";
import { newDump } from "./newdump.js";
import { badge, progressBar, setBadge } from "./parts.js";
import { throttle } from "./throttle.js";

const TONE = { queued: "idle", running: "good", paused: "warn", completed: "idle", cancelled: "idle", failed: "bad" };
const ENDED = new Set(["completed", "cancelled", "failed"]);
const PAGE = 30;

export function dumpsTab(root, name) {
  const operator = session.role === "operator";
  const act = async (method, path, done, body) => {
    try {
      await request(method, path, { query: { pipeline: name }, body });
      note(done);
    } catch (error) {
      note(error.hint ? `${error.message} (${error.hint})` : error.message, "bad");
    }
    reading.now();
  };
  let overview = null;
  let more = PAGE;
  const running = h("ul", { class: "dumps" });
  const none = h("p", { class: "empty" }, "No dump is running.");
  const ended = h("ul", { class: "dumps" });
  const further = h("button", { type: "button", hidden: true, onclick: () => { more += PAGE; reading.now(); } }, "Show more");
  const limits = throttle(name, operator);
  const begin = h("button", { class: "main", type: "button", disabled: !operator, onclick: () => newDump(name, () => reading.now()) }, "New dump");
  root.append(h("div", { class: "dumps-page" },
    h("div", { class: "stack" },
      h("div", { class: "row" }, h("h2", {}, "Dumps"), h("span", { class: "grow" }), begin),
      operator ? null : h("p", { class: "soft small" }, "You may read only: sign in with the operators' token to change something."),
      running, none,
      h("section", { class: "stack", "aria-label": "Ended dumps" }, h("h2", {}, "Ended"), ended, further)),
    limits.element));

  function create(dump) {
    const title = h("strong", {});
    const state = badge("idle", "");
    const what = h("span", { class: "soft small" });
    const bar = progressBar(`progress of dump ${dump.id}`);
    const numbers = h("span", { class: "small" });
    const why = h("span", { class: "small attention" });
    const pause = h("button", { type: "button", disabled: !operator }, "Pause");
    pause.addEventListener("click", () => {
      const paused = element.dump.state === "paused";
      act("POST", `/dumps/${dump.id}/${paused ? "resume" : "pause"}`, `Dump ${dump.id} is ${paused ? "resumed" : "paused"}.`);
    });
    const cancel = h("button", { type: "button", class: "danger", disabled: !operator }, "Cancel");
    cancel.addEventListener("click", () => {
      if (cancel.dataset.sure) act("POST", `/dumps/${dump.id}/cancel`, `Dump ${dump.id} is cancelled.`);
      cancel.dataset.sure = cancel.dataset.sure ? "" : "yes";
      text(cancel, cancel.dataset.sure ? "Really cancel?" : "Cancel");
    });
    cancel.addEventListener("blur", () => { cancel.dataset.sure = ""; text(cancel, "Cancel"); });
    const buttons = h("span", { class: "row" }, pause, cancel);
    const tables = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `tables of dump ${dump.id}` });
    const details = h("details", {}, h("summary", {}, "Tables"), tables);
    details.addEventListener("toggle", () => details.open && showTables(tables, name, dump.id));
    const element = h("li", { class: "card dump" },
      h("div", { class: "row" }, title, state, what, h("span", { class: "grow" }), buttons), bar.element, h("div", { class: "row" }, numbers, why), details);
    let before = null;
    element.update = (each) => {
      element.dump = each;
      const now = Date.now() / 1000;
      if (before && each.read > before.read) element.rate = (each.read - before.read) / (now - before.at);
      if (!before || each.read !== before.read) before = { read: each.read, at: now };
      else if (now - before.at > 10) element.rate = 0;
      text(title, each.id);
      setBadge(state, TONE[each.state], each.state);
      text(what, described(each));
      bar.element.hidden = ENDED.has(each.state) && each.state === "completed";
      bar.set(each.state === "completed" ? 1 : each.read, each.state === "completed" ? 1 : each.total);
      text(numbers, ENDED.has(each.state) ? endedLine(each) : runningLine(each, element.rate));
      text(why, each.reason ?? waits(each, overview));
      buttons.hidden = ENDED.has(each.state);
      text(pause, each.state === "paused" ? "Resume" : "Pause");
      attribute(pause, "aria-label", `${pause.textContent} dump ${each.id}`);
      attribute(cancel, "aria-label", `${cancel.textContent} dump ${each.id}`);
      details.hidden = each.table_count < 1;
      if (details.open && !ENDED.has(each.state)) showTables(tables, name, each.id);
    };
    return element;
  }

  const reading = repeat(() => get("/dumps", { pipeline: name, brief: true }), ({ dumps }) => {
    const open = dumps.filter((each) => !ENDED.has(each.state));
    const over = dumps.filter((each) => ENDED.has(each.state)).sort((a, b) => (b.finished_at ?? b.created_at ?? 0) - (a.finished_at ?? a.created_at ?? 0));
    keyed(running, open, (each) => each.id, create, (element, each) => element.update(each));
    keyed(ended, over.slice(0, more), (each) => each.id, create, (element, each) => element.update(each));
    none.hidden = open.length > 0;
    further.hidden = over.length <= more;
  }, { every: 1500 });
  return {
    show(found) { overview = found; },
    close() {
      reading.close();
      limits.close();
    },
  };
}

function described(dump) {
  if (dump.kind === "initial") return "first dump of every table";
  if (dump.kind === "repair") return "rows that the log leaves incomplete";
  if (dump.kind === "all") return "all tables";
  if (dump.kind === "keys") return `keys of ${dump.tables}`;
  return dump.kind === "where" ? `${dump.tables} where ${dump.where}` : dump.tables;
}

function runningLine(dump, speed) {
  const all = dump.total === null ? "" : ` of about ${number(dump.total)} (${percent(dump.read, dump.total)})`;
  const left = dump.seconds_left === null || dump.state === "paused" ? "" : `${seconds(dump.seconds_left)} left`;
  const shown = dump.state === "running" && speed !== undefined ? rate(speed, "rows") : "";
  const tables = dump.table_count > 1 ? `${dump.tables_ended} of ${plural(dump.table_count, "table")}` : "";
  return [`${number(dump.read)} rows read${all}`, shown, left, `${whole(dump.dropped)} dropped as stale`, tables].filter(Boolean).join(" · ");
}

function endedLine(dump) {
  const took = dump.started_at && dump.finished_at ? `in ${seconds(dump.finished_at - dump.started_at)}` : "";
  return [`${whole(dump.emitted)} rows delivered`, `${whole(dump.dropped)} dropped as stale`, took, dump.finished_at ? ago(dump.finished_at) : ""].filter(Boolean).join(" · ");
}

function waits(dump, overview) {
  if (ENDED.has(dump.state) || !overview) return "";
  if (dump.state === "paused") return "somebody has paused it";
  if (!["running", "waiting for sink", "restarting"].includes(overview.state)) return `the pipeline is ${overview.state}`;
  if (overview.state !== "running") return overview.reason ?? overview.state;
  if (overview.waiting) return `waits: ${overview.waiting}`;
  return dump.state === "queued" ? "waits for the next batch" : "";
}

async function showTables(place, name, id) {
  const dump = await get(`/dumps/${encodeURIComponent(id)}`, { pipeline: name }).catch(() => null);
  if (!dump) return;
  const order = { running: 0, failed: 1, queued: 2, paused: 2, completed: 3, cancelled: 3 };
  const rows = Object.entries(dump.progress).sort(([, a], [, b]) => order[a.state] - order[b.state]).slice(0, 200);
  if (!place.firstElementChild) {
    place.append(h("table", {}, h("thead", {}, h("tr", {}, ["Table", "State", "Read", "Of about", "Dropped"].map((title, at) =>
      h("th", { scope: "col", class: at > 1 ? "number" : null }, title)))), h("tbody", {})), h("p", { class: "soft small" }));
  }
  keyed(place.querySelector("tbody"), rows, ([table]) => table, () => h("tr", {}, h("td", {}), h("td", {}), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" })),
    (element, [table, each]) => [table, each.reason ? `${each.state}: ${each.reason}` : each.state, whole(each.read), whole(each.total), whole(each.dropped)].forEach((value, at) => text(element.children[at], value)));
  const missed = Object.values(dump.progress).reduce((sum, each) => sum + each.missed, 0);
  text(place.lastElementChild, [
    Object.keys(dump.progress).length > 200 ? `The first 200 of ${Object.keys(dump.progress).length} tables.` : "",
    missed ? `${plural(missed, "requested key has", "requested keys have")} no row.` : "",
    dump.created_at ? `Requested ${clock(dump.created_at)}.` : "",
  ].filter(Boolean).join(" "));
}
