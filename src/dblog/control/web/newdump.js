// The dialog for a new dump, with an estimate, and the same as a command and as curl.

import { get, request, session } from "./api.js";
import { h, note, text } from "./dom.js";
import { number, plural, seconds, whole } from "./format.js";

const quoted = (value) => (/^[\w.,:/@%+=-]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`);

/** Keys as users write them: one per line; the values of a composite key with commas between. */
export function readKeys(written) {
  return written.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const parts = line.split(",").map((part) => part.trim());
    return parts.length > 1 ? parts : parts[0];
  });
}

export function bodyOf(kind, tables, keys, where) {
  if (kind === "all") return {};
  if (kind === "keys") return { tables, keys: readKeys(keys) };
  return kind === "where" ? { tables, where } : { tables };
}

export function commandOf(name, body) {
  const words = ["dblog", "dump"];
  if (body.tables) words.push(quoted(body.tables));
  else words.push("--all");
  const composite = (body.keys ?? []).filter(Array.isArray);
  if (composite.length) words.push(...composite.flatMap((key) => ["--key", quoted(JSON.stringify(key))]));
  else if (body.keys) words.push("--keys", quoted(body.keys.join(",")));
  if (body.where) words.push("--where", quoted(body.where));
  return [...words, "--pipeline", quoted(name)].join(" ");
}

export function curlOf(name, body, token) {
  const url = `${location.origin}/api/v1/dumps?pipeline=${encodeURIComponent(name)}`;
  const auth = token ? ` \\\n  -H "authorization: Bearer $DBLOG_TOKEN"` : "";
  return `curl -s ${quoted(url)}${auth} \\\n  -H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}`;
}

export async function newDump(name, done) {
  const followed = await get("/tables/names", { pipeline: name }).then((found) => found.tables).catch(() => []);
  const kinds = [["table", "Tables"], ["keys", "Some keys"], ["where", "Rows under a condition"], ["all", "Everything"]];
  const radios = kinds.map(([kind, title]) => {
    const input = h("input", { type: "radio", name: "kind", value: kind, id: `kind-${kind}`, checked: kind === "table", onchange: update });
    return h("label", { class: "choice", for: `kind-${kind}` }, input, ` ${title}`);
  });
  const options = h("datalist", { id: "followed" }, followed.slice(0, 2000).map((table) => h("option", { value: table })));
  const tables = h("input", { id: "dump-tables", list: "followed", autocomplete: "off", spellcheck: "false", oninput: update });
  const tableLabel = h("label", { for: "dump-tables" }, "Tables");
  const tableHelp = h("small", {});
  const keys = h("textarea", { id: "dump-keys", rows: "3", spellcheck: "false", oninput: update });
  const where = h("input", { id: "dump-where", spellcheck: "false", class: "mono", placeholder: "created_at > now() - interval '1 day'", oninput: update });
  const tableField = h("div", { class: "field" }, tableLabel, tables, tableHelp, options);
  const keyField = h("div", { class: "field" }, h("label", { for: "dump-keys" }, "Keys"), keys, h("small", {}, "One per line; a composite key with commas."));
  const whereField = h("div", { class: "field" }, h("label", { for: "dump-where" }, "Condition"), where, h("small", {}, "In the database's SQL, on the columns of the table."));
  const estimate = h("p", { class: "estimate", "aria-live": "polite" });
  const command = h("pre", { class: "command", tabindex: "0", "aria-label": "as a command" });
  const curl = h("pre", { class: "command", tabindex: "0", "aria-label": "with curl" });
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const submit = h("button", { class: "main", type: "submit" }, "Request the dump");
  const form = h("form", { class: "stack", method: "dialog" },
    h("h2", { id: "dump-title" }, `New dump of ${name}`),
    h("fieldset", { class: "row" }, h("legend", { class: "hidden" }, "What to dump"), radios),
    tableField, keyField, whereField, estimate,
    h("details", {}, h("summary", {}, "The same on the command line"), h("div", { class: "stack" }, command, curl)),
    wrong,
    h("div", { class: "row" }, h("span", { class: "grow" }), h("button", { type: "button", onclick: () => dialog.close() }, "Close"), submit));
  const dialog = h("dialog", { "aria-labelledby": "dump-title" }, form);
  const kind = () => form.elements.kind.value;
  const body = () => bodyOf(kind(), tables.value.trim(), keys.value, where.value.trim());
  let asked = 0;
  let timer = null;

  function update() {
    const now = kind();
    tableField.hidden = now === "all";
    keyField.hidden = now !== "keys";
    whereField.hidden = now !== "where";
    text(tableLabel, now === "table" ? "Tables" : "Table");
    text(tableHelp, now === "table" ? "One or several, with wildcards: public.*, !public.tmp_*" : "One table.");
    text(command, commandOf(name, body()));
    text(curl, curlOf(name, body(), session.token));
    wrong.hidden = true;
    clearTimeout(timer);
    timer = setTimeout(guess, 150);
  }

  async function guess() {
    const mine = ++asked;
    const wanted = body();
    const query = { pipeline: name, tables: wanted.tables || undefined, keys: wanted.keys?.length || undefined };
    submit.disabled = kind() !== "all" && !wanted.tables;
    if (submit.disabled) {
      text(estimate, "");
      return;
    }
    const found = await get("/estimate", query).catch((error) => error);
    if (mine !== asked) return;
    text(estimate, found instanceof Error ? found.message : said(found, kind()));
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const dump = await request("POST", "/dumps", { query: { pipeline: name }, body: body() });
      note(`Dump ${dump.id} is requested.`);
      dialog.close();
      done();
    } catch (error) {
      wrong.hidden = false;
      text(wrong, [error.message, error.hint].filter(Boolean).join(". "));
      submit.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  update();
  dialog.showModal();
  tables.focus();
}

function said(found, kind) {
  if (!found.count) return "No followed table matches.";
  const named = found.count <= 3 ? found.tables.join(", ") : plural(found.count, "table");
  const rows = found.rows === null ? "of unknown size" : `about ${number(found.rows)} rows${kind === "where" ? " to look at" : ""}`;
  const time = found.seconds === null ? "how long it takes is not known yet" : `about ${seconds(found.seconds)} at ${whole(found.rows_per_second)} rows/s`;
  return `${named}: ${rows}, ${time}.`;
}
