// All pipelines, the worst first.

import { get, repeat } from "./api.js";
import { attribute, h, keyed, text } from "./dom.js";
import { ago, bytes, number, plural, seconds } from "./format.js";
import { badge, lagBar, setBadge, setLagBar, setSparkline, sparkline } from "./parts.js";

const GROUPS = [
  ["bad", "failing", (n) => `${n} failing`],
  ["warn", "to look at", (n) => `${n} to look at`],
  ["good", "running", (n) => `${n} running`],
  ["idle", "stopped", (n) => `${n} stopped`],
];

const soon = (each) => each.lost_in_seconds !== null && each.lost_in_seconds < 86400;
export const path = (name, ...more) => `#/p/${[name, ...more].map(encodeURIComponent).join("/")}`;

export function fleetView(root) {
  let found = null;
  let shown = new Set();
  const search = h("input", { type: "search", placeholder: "Filter by name or database", "aria-label": "Filter pipelines", oninput: render });
  const groups = h("div", { class: "row", role: "group", "aria-label": "Show only" });
  const buttons = GROUPS.map(([severity]) => {
    const button = h("button", { type: "button", class: `group ${severity}`, "aria-pressed": "false" });
    button.addEventListener("click", () => {
      shown.has(severity) ? shown.delete(severity) : shown.add(severity);
      attribute(button, "aria-pressed", shown.has(severity));
      render();
    });
    groups.append(button);
    return button;
  });
  const list = h("ol", { class: "fleet" });
  const empty = h("p", { class: "empty", hidden: true });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Pipelines"), groups, h("span", { class: "grow" }), search),
    h("div", { class: "fleet-head soft small", "aria-hidden": "true" },
      ["Pipeline", "Lag", "Log events", "Dump rows", "Log kept for it", "Status"].map((name) => h("span", {}, name))),
    list, empty,
  );

  function render() {
    if (!found) return;
    const wanted = search.value.trim().toLowerCase();
    const matches = (each) => !wanted || `${each.name} ${each.source ?? ""}`.toLowerCase().includes(wanted);
    const members = found.pipelines.filter((each) => (!shown.size || shown.has(each.severity)) && matches(each));
    GROUPS.forEach(([severity, , label], at) => {
      const count = found.pipelines.filter((each) => each.severity === severity).length;
      text(buttons[at], label(count));
      buttons[at].hidden = !count && !shown.has(severity);
    });
    keyed(list, members, (each) => each.name, create, (element, each) => element.update(each, found.at));
    empty.hidden = members.length > 0;
    text(empty, found.pipelines.length ? "No pipeline matches." : "No pipeline has used this state store yet. Start one with dblog run.");
  }

  const reading = repeat(() => get("/fleet"), (answer) => {
    found = answer;
    render();
  });
  return { close: reading.close };
}

function create(member) {
  const state = badge("idle", "");
  const concern = h("span", { class: "concern small" });
  const source = h("span", { class: "soft small cut" });
  const lag = h("strong", {});
  const split = lagBar();
  const slow = h("span", { class: "soft small" });
  const events = h("strong", {});
  const eventLine = sparkline("log events per second over ten minutes");
  const rows = h("strong", {});
  const rowLine = sparkline("dump rows per second over ten minutes");
  const kept = h("strong", {});
  const forecast = h("span", { class: "soft small" });
  const updated = h("span", { class: "small" });
  const more = h("span", { class: "soft small" });
  const cell = (label, ...children) => h("div", { class: "cell" }, h("span", { class: "label" }, label), children);
  const element = h("li", { class: "member" },
    h("div", { class: "cell name" }, h("div", { class: "row" }, h("a", { href: path(member.name), class: "cut" }, member.name), state), concern, source),
    cell("Lag", lag, split, slow),
    cell("Log events", events, eventLine),
    cell("Dump rows", rows, rowLine),
    cell("Log kept for it", kept, forecast),
    cell("Status", updated, more),
  );
  element.update = (each, now) => {
    attribute(element, "class", `member ${each.severity}`);
    setBadge(state, each.severity, each.state);
    text(concern, each.error ?? each.reason ?? each.concerns.join(", "));
    text(source, [each.source?.replace(/^[a-z]+:\/\//, ""), Object.values(each.sink)[0]].filter(Boolean).join(" → "));
    text(lag, seconds(each.lag_seconds));
    setLagBar(split, each.lag);
    text(slow, each.slow ? `${bytes(each.lag_bytes)}, most in ${each.slow}` : each.lag ? "nothing waits" : "");
    text(events, each.events_per_second === null ? "–" : `${number(each.events_per_second)}/s`);
    setSparkline(eventLine, each.recent.events_per_second);
    text(rows, each.rows_per_second === null ? "–" : `${number(each.rows_per_second)}/s`);
    setSparkline(rowLine, each.recent.rows_per_second);
    text(kept, bytes(each.retained_bytes));
    text(forecast, each.wal_status === "lost" ? "lost"
      : soon(each) ? `limit in ${seconds(each.lost_in_seconds)}`
      : each.safe_bytes !== null ? `${bytes(each.safe_bytes)} to the limit` : "");
    attribute(forecast, "class", `small ${soon(each) ? "attention" : "soft"}`);
    text(updated, each.updated_at === null ? "never" : ago(each.updated_at, now));
    const role = each.role ? `${each.role}${each.epoch === null ? "" : `, epoch ${each.epoch}`}` : "";
    text(more, [role, plural(each.tables, "table"), each.left_out ? `${each.left_out} left out` : ""].filter(Boolean).join(" · "));
  };
  return element;
}
