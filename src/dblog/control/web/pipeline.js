// One pipeline: its head, its tabs, and the overview.

import { get, repeat } from "./api.js";
import { actionsTab } from "./actions.js";
import { attribute, h, keyed, text } from "./dom.js";
import { dumpsTab } from "./dumps.js";
import { path } from "./fleet.js";
import { ago, bytes, clock, number, plural, rate, seconds, whole } from "./format.js";
import { liveTab } from "./live.js";
import { LAG_PARTS, badge, setBadge, setSparkline, sparkline, tile } from "./parts.js";
import { tablesTab } from "./tables.js";
import { timeTab } from "./time.js";

const TABS = [
  ["overview", "Overview", overviewTab],
  ["live", "Live window", liveTab],
  ["dumps", "Dumps", dumpsTab],
  ["tables", "Tables", tablesTab],
  ["time", "Time", timeTab],
  ["actions", "Actions", actionsTab],
];

export function pipelineView(root, at) {
  const name = at.name;
  const state = badge("idle", "");
  const where = h("p", { class: "soft small" });
  const problem = h("div", { class: "problem", hidden: true }, h("strong", {}), h("span", { class: "small" }));
  const links = TABS.map(([tab, title]) => h("a", { href: path(name, tab) }, title));
  const body = h("section", { "aria-label": "" });
  root.append(
    h("div", { class: "head" }, h("div", { class: "stack tight" }, h("div", { class: "row" }, h("h1", {}, name), state), where)),
    problem,
    h("nav", { class: "tabs", "aria-label": "Views of the pipeline" }, links),
    body,
  );
  let tab = null;
  let shownTab = null;
  let known = null;

  function moved(to) {
    const found = TABS.find(([each]) => each === to.tab) ?? TABS[0];
    links.forEach((link, index) => attribute(link, "aria-current", TABS[index] === found ? "page" : null));
    document.title = `${name}: ${found[1]} · DBLog`;
    if (shownTab === found[0] && tab?.moved) {
      tab.moved(to);
      return;
    }
    tab?.close?.();
    body.replaceChildren();
    attribute(body, "aria-label", found[1]);
    shownTab = found[0];
    tab = found[2](body, name, to);
    if (known) tab.show?.(known);
  }

  function show(found) {
    known = found;
    setBadge(state, found.severity, found.state);
    const sinks = Object.entries(found.sink).map(([key, value]) => `${key}: ${value}`).join(", ");
    const role = found.role ? `${found.role}${found.epoch === null ? "" : `, epoch ${found.epoch}`}` : "";
    text(where, [found.source, sinks, role, `status ${ago(found.updated_at, found.at)}`].filter(Boolean).join(" · "));
    const wrong = found.error ?? found.reason ?? (found.severity === "bad" || found.severity === "warn" ? found.concerns.join(", ") : null);
    problem.hidden = !wrong;
    attribute(problem, "class", `problem ${found.severity}`);
    text(problem.firstElementChild, wrong);
    const since = found.since === null ? "" : `for ${seconds(found.at - found.since)}`;
    text(problem.lastElementChild, [found.hint ? `What to do: ${found.hint}` : "", since].filter(Boolean).join(" · "));
    tab?.show?.(found);
  }

  const reading = repeat(() => get("/overview", { pipeline: name }), show, {
    every: 1000,
    failed(error) {
      if (error.status !== 404) return;
      problem.hidden = false;
      attribute(problem, "class", "problem bad");
      text(problem.firstElementChild, error.message);
      text(problem.lastElementChild, error.hint ?? "");
    },
  });
  moved(at);
  return {
    moved,
    close() {
      reading.close();
      tab?.close?.();
    },
  };
}

function overviewTab(root) {
  const lag = tile("Lag", "age of the oldest commit that is not delivered");
  const events = tile("Log events", "delivered per second");
  const rows = tile("Dump rows", "delivered per second");
  const batch = tile("Last batch", "from its plan to its commit");
  const spool = tile("Spool", "captured log and staged chunks on the spool");
  const kept = tile("Log kept", "log that the database keeps for this pipeline");
  const lagLine = sparkline("lag over ten minutes");
  lag.element.append(lagLine);
  const eventLine = sparkline("log events per second over ten minutes");
  events.element.append(eventLine);
  const rowLine = sparkline("dump rows per second over ten minutes");
  rows.element.append(rowLine);

  const parts = LAG_PARTS.map(([part, about]) => ({
    part, value: h("strong", {}), about: h("span", { class: "soft small" }, about),
  }));
  const flow = h("div", { class: "flow" },
    h("span", { class: "stop" }, "log"), flowPart(parts[0]), h("span", { class: "stop" }, "spool"), flowPart(parts[1]),
    h("span", { class: "stop" }, "batch"), flowPart(parts[2]), h("span", { class: "stop" }, "delivered"));
  const verdict = h("p", { class: "soft" });
  const facts = h("dl", { class: "facts" });
  const leftOut = h("section", { class: "card", hidden: true }, h("h2", {}, "Tables that are not followed"), h("dl", { class: "facts" }));
  root.append(h("div", { class: "stack" },
    h("div", { class: "tiles" }, [lag, events, rows, batch, spool, kept].map((each) => each.element)),
    h("div", { class: "columns" },
      h("section", { class: "card stack" }, h("h2", {}, "Where the lag is"), flow, verdict),
      h("section", { class: "card" }, h("h2", {}, "About it"), facts)),
    leftOut));

  return {
    show(found) {
      lag.set(seconds(found.lag_seconds), `${bytes(found.lag_bytes)} of log`);
      events.set(rate(found.events_per_second, "events"), `${number(found.events)} since its start`);
      rows.set(rate(found.rows_per_second, "rows"), `${number(found.rows)} since its start, ${number(found.dropped)} dropped as stale`);
      batch.set(seconds(found.last_batch_seconds), `${plural(found.windows ?? 0, "window")} since its start`);
      spool.set(bytes(found.spool_bytes));
      kept.set(bytes(found.retained_bytes), found.lost_in_seconds !== null && found.lost_in_seconds < 86400 ? `reaches the limit in ${seconds(found.lost_in_seconds)}`
        : found.safe_bytes !== null ? `${bytes(found.safe_bytes)} to the limit` : "");
      setSparkline(lagLine, found.recent.lag_seconds);
      setSparkline(eventLine, found.recent.events_per_second);
      setSparkline(rowLine, found.recent.rows_per_second);
      for (const each of parts) {
        const value = found.lag?.[each.part] ?? null;
        text(each.value, bytes(value));
        each.element.classList.toggle("none", !value);
      }
      text(verdict, !found.lag ? "The pipeline has not said where it is."
        : found.slow ? `Most of the lag waits for the ${found.slow === "capture" ? "capture of the log" : found.slow === "spool" ? "next batch" : "sink"}.`
        : "Nothing waits: every change is delivered.");
      fact(facts, [
        ["Database", found.source], ["Slot", found.slot], ["Tables", whole(found.tables)], ["Now", found.waiting],
        ["Joining", found.joining.join(", ")], ["Runs on", found.host ? `${found.host}, process ${found.pid}` : null],
        ["Started", found.started_at ? clock(found.started_at) : null], ["Restarts", found.restarts || null],
        ["Position", found.position === null ? null : `${found.position} of ${found.latest ?? "?"}`],
        ["Spark", /^https?:/.test(found.spark_ui ?? "") ? h("a", { href: found.spark_ui, rel: "noreferrer" }, "Spark's own page") : null],
      ]);
      const aside = Object.entries({ ...found.not_followed, ...found.set_aside });
      leftOut.hidden = !aside.length;
      fact(leftOut.lastElementChild, aside.slice(0, 200).map(([table, why]) => [table, typeof why === "string" ? why : why?.reason ?? ""]));
    },
  };
}

function flowPart(each) {
  each.element = h("div", { class: `part ${each.part}` }, each.value, each.about);
  return each.element;
}

function fact(list, entries) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const cells = shown.flatMap(([title, value]) => [{ key: `t ${title}`, tag: "dt", value: title }, { key: `v ${title}`, tag: "dd", value }]);
  keyed(list, cells, (cell) => cell.key, (cell) => h(cell.tag, {}), (element, cell) => {
    if (!(cell.value instanceof Node)) text(element, cell.value);
    else if (element.textContent !== cell.value.textContent) element.replaceChildren(cell.value);
  });
}
