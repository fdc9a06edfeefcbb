// What users did: who, when, what.

import { get, repeat } from "./api.js";
import { h, keyed, text } from "./dom.js";
import { ago, clock } from "./format.js";

export function actionsTab(root, name) {
  const body = h("tbody", {});
  const empty = h("p", { class: "empty", hidden: true }, "Nobody has changed anything yet.");
  root.append(h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "List of actions" },
    h("table", {}, h("caption", { class: "hidden" }, "Actions of users, the newest first"),
      h("thead", {}, h("tr", {}, ["When", "Who", "What"].map((title) => h("th", { scope: "col" }, title)))), body), empty));
  const reading = repeat(() => get("/actions", { pipeline: name, limit: 200 }), (found) => {
    keyed(body, found.actions, (each) => `${each.at} ${each.action} ${each.dump ?? ""}`, (each) =>
      h("tr", {}, h("td", { title: clock(each.at) }), h("td", {}, each.by), h("td", {}, said(each))),
    (element, each) => text(element.firstElementChild, ago(each.at)));
    empty.hidden = found.actions.length > 0;
  }, { every: 3000 });
  return { close: reading.close };
}

export function said(action) {
  if (action.action === "settings") {
    const changes = Object.entries(action.changed ?? {}).map(([setting, value]) => `${setting} = ${value === null ? "default" : value}`);
    return changes.join(", ");
  }
  if (action.action === "dump") {
    const what = action.kind === "all" ? "all tables" : action.kind === "keys" ? `${action.keys} keys of ${action.tables}` : action.tables;
    return `requested dump ${action.dump}: ${what}${action.kind === "where" ? " under a condition" : ""}`;
  }
  return `${{ pause: "paused", resume: "resumed", cancel: "cancelled" }[action.action] ?? action.action} dump ${action.dump}`;
}
