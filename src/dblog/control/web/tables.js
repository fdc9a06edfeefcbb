// The tables of a pipeline: a list with pages, and one table in detail.

import { get, repeat } from "./api.js";
import { attribute, h, keyed, text } from "./dom.js";
import { path } from "./fleet.js";
import { ago, clock, number, plural, whole } from "./format.js";
import { badge } from "./parts.js";

const SIZE = 50;
const KINDS = [["create", "inserted"], ["update", "updated"], ["delete", "deleted"], ["truncate", "truncated"]];

/** Changes per second of each kind, from the counters of two answers. */
function speeds(before, row, at) {
  if (!before || !(at > before.at)) return null;
  return Object.fromEntries(KINDS.map(([kind]) => [kind, Math.max(0, ((row.operations[kind] ?? 0) - (before.operations[kind] ?? 0)) / (at - before.at))]));
}

export function tablesTab(root, name, at) {
  let shown = null;
  function moved(to) {
    shown?.close();
    root.replaceChildren();
    shown = to.more ? detail(root, name, to.more) : list(root, name);
  }
  moved(at);
  return { moved, close: () => shown.close() };
}

function list(root, name) {
  const wanted = { search: "", sort: "name", descending: false, skip: 0 };
  const seen = new Map();
  const search = h("input", { type: "search", placeholder: "Filter tables", "aria-label": "Filter tables" });
  search.addEventListener("input", () => go({ search: search.value.trim(), skip: 0 }));
  const count = h("span", { class: "soft small", "aria-live": "polite" });
  const sorts = { name: "Table", rows: "Rows", changes: "Changes" };
  const heads = Object.entries(sorts).map(([sort, title]) => {
    const button = h("button", { type: "button", class: "quiet sort" }, title);
    button.addEventListener("click", () => go({ sort, descending: wanted.sort === sort ? !wanted.descending : sort !== "name", skip: 0 }));
    return h("th", { scope: "col", class: sort === "name" ? null : "number" }, button);
  });
  const body = h("tbody", {});
  const earlier = h("button", { type: "button", onclick: () => go({ skip: Math.max(0, wanted.skip - SIZE) }) }, "Earlier");
  const later = h("button", { type: "button", onclick: () => go({ skip: wanted.skip + SIZE }) }, "Later");
  const empty = h("p", { class: "empty", hidden: true }, "No table matches.");
  root.append(h("div", { class: "stack" },
    h("div", { class: "row" }, search, count, h("span", { class: "grow" }), h("div", { class: "row", role: "group", "aria-label": "Pages" }, earlier, later)),
    h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "List of tables" }, h("table", { class: "grid" }, h("caption", { class: "hidden" }, "Tables"),
      h("thead", {}, h("tr", {}, heads, ["Per second, by kind", "Schema", "Last dump"].map((title) => h("th", { scope: "col" }, title)))), body), empty)));

  function go(change) {
    Object.assign(wanted, change);
    reading.now();
  }

  function create(row) {
    const speed = h("td", { class: "speed" });
    return h("tr", {}, h("td", {}, h("a", { href: path(name, "tables", row.name) }, row.name), h("span", { class: "soft small block" })),
      h("td", { class: "number" }), h("td", { class: "number" }), speed, h("td", {}, h("code", {})), h("td", {}));
  }

  const reading = repeat(() => get("/tables/page", { pipeline: name, limit: SIZE, ...wanted }), (found) => {
    text(count, found.count > SIZE ? `${whole(wanted.skip + 1)} to ${whole(wanted.skip + found.rows.length)} of ${plural(found.count, "table")}` : plural(found.count, "table"));
    earlier.disabled = wanted.skip === 0;
    later.disabled = wanted.skip + SIZE >= found.count;
    earlier.parentElement.hidden = found.count <= SIZE;
    empty.hidden = found.count > 0;
    heads.forEach((head, index) => attribute(head, "aria-sort", Object.keys(sorts)[index] === wanted.sort ? (wanted.descending ? "descending" : "ascending") : null));
    keyed(body, found.rows, (row) => row.name, create, (element, row) => {
      const before = seen.get(row.name);
      if (before?.at !== found.at) {
        const speed = speeds(before, row, found.at) ?? before?.speed ?? null;
        seen.set(row.name, { at: found.at, operations: row.operations, speed });
      }
      const cells = element.children;
      text(cells[0].lastElementChild, `key ${row.key.join(", ")} · ${plural(row.columns, "column")}`);
      text(cells[1], number(row.rows));
      text(cells[2], number(Object.values(row.operations).reduce((sum, each) => sum + each, 0)));
      showSpeed(cells[3], seen.get(row.name)?.speed);
      text(cells[4].firstElementChild, row.version ?? "–");
      text(cells[5], row.last_dump ? dumpSaid(row.last_dump) : "–");
    });
  }, { every: 2000 });
  return { close: reading.close };
}

function showSpeed(cell, speed) {
  const shown = speed ? KINDS.filter(([kind]) => speed[kind] > 0) : [];
  keyed(cell, shown.length ? shown : [["none", speed ? "no changes" : "…"]], ([kind]) => kind, ([kind]) => h("span", { class: `kind ${kind}` }),
    (element, [kind, title]) => text(element, kind === "none" ? title : `${number(speed[kind])} ${title}`));
}

function dumpSaid(use) {
  return use.finished_at && use.state === "completed" ? `${use.dump}, ${ago(use.finished_at)}` : `${use.dump}, ${use.state}`;
}

function detail(root, name, table) {
  const facts = h("p", { class: "soft" });
  const speed = h("div", { class: "row speed" });
  const schemas = h("ol", { class: "schemas" });
  const dumps = h("tbody", {});
  const problem = h("p", { class: "problem", hidden: true });
  const dropped = h("tbody", {});
  const search = h("input", { type: "search", placeholder: "Find a key", "aria-label": "Find a key", oninput: () => reading.now() });
  root.append(h("div", { class: "stack" },
    h("div", { class: "row" }, h("a", { href: path(name, "tables") }, "← Tables"), h("h2", { class: "mono" }, table)), problem, facts, speed,
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Schemas over time"), schemas),
      h("section", { class: "card scroll", tabindex: "0", "aria-label": "Dumps of the table" }, h("h2", {}, "Dumps"), h("table", {}, h("thead", {}, h("tr", {},
        ["Dump", "State", "Delivered", "Dropped", "Ended"].map((title) => h("th", { scope: "col" }, title)))), dumps)),
      h("section", { class: "card scroll", tabindex: "0", "aria-label": "Rows dropped as stale" },
        h("div", { class: "row" }, h("h2", {}, "Rows dropped as stale"), h("span", { class: "grow" }), search),
        h("p", { class: "soft small" }, "From the last events: a select had read the row, and the log had something newer, which was delivered instead."),
        h("table", {}, h("thead", {}, h("tr", {}, ["Key", "When", "Dump", "Because of"].map((title) => h("th", { scope: "col" }, title)))), dropped)))));
  let before = null;
  const reading = repeat(() => get("/tables/one", { pipeline: name, table, key: search.value.trim() || undefined }), (found) => {
    problem.hidden = true;
    const row = found.row;
    text(facts, [`about ${number(row.rows)} rows`, `key ${row.key.join(", ")}`, `schema ${row.version ?? "–"}`].join(" · "));
    if (before?.at !== found.at) before = { at: found.at, operations: row.operations, speed: speeds(before, row, found.at) ?? before?.speed };
    showSpeed(speed, before.speed);
    keyed(schemas, found.schemas, (each) => each.version, (each) => {
      const older = found.schemas[found.schemas.indexOf(each) + 1];
      return h("li", {}, h("div", { class: "row" }, h("code", {}, each.version), each.current ? badge("good", "now") : null,
        h("span", { class: "soft small" }, each.seen_at ? `first seen ${clock(each.seen_at)}` : "")), differences(older, each));
    });
    keyed(dumps, found.dumps, (each) => each.dump, () => h("tr", {}, [0, 1, 2, 3, 4].map(() => h("td", {}))), (element, each) =>
      [each.dump, each.reason ? `${each.state}: ${each.reason}` : each.state, whole(each.emitted), whole(each.dropped), each.finished_at ? ago(each.finished_at) : "–"]
        .forEach((value, at) => text(element.children[at], value)));
    keyed(dropped, found.dropped, (each) => `${each.at} ${each.key}`, () => h("tr", {}, [0, 1, 2, 3].map(() => h("td", {}))), (element, each) =>
      [each.key.join(", "), ago(each.at), each.dump, each.by ? `${each.by.op} at position ${each.by.lsn}` : "–"].forEach((value, at) => text(element.children[at], value)));
  }, { every: 2000, failed(error) { problem.hidden = false; text(problem, error.message); } });
  return { close: reading.close };
}

/** The columns of a schema; those that the older one has otherwise are marked. */
function differences(older, newer) {
  const was = new Map(older?.columns ?? []);
  const now = new Map(newer.columns);
  const mark = (column, kind) => {
    if (!older) return "";
    if (!was.has(column)) return "added";
    return was.get(column) !== kind ? `was ${was.get(column)}` : "";
  };
  const gone = [...was].filter(([column]) => !now.has(column));
  return h("ul", { class: "diff" },
    [...now].map(([column, kind]) => h("li", { class: mark(column, kind) ? "changed" : null },
      h("code", {}, column), " ", h("span", { class: "soft small" }, kind), mark(column, kind) ? h("em", {}, ` ${mark(column, kind)}`) : null,
      newer.key.includes(column) ? h("span", { class: "soft small" }, " key") : null)),
    gone.map(([column, kind]) => h("li", { class: "gone" }, h("code", {}, column), " ", h("span", { class: "small" }, kind), h("em", {}, " removed"))));
}
