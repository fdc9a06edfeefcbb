// The picture of the watermark algorithm: it is drawn from the events of a pipeline and from nothing else.
//
// Time runs from left to right, and the present is at the right edge. From top to bottom: the log with its watermarks,
// the lanes with chunks that are selected between two watermarks, the batches, and the rows that were dropped.

import { attribute, s, text } from "./dom.js";
import { number, plural, seconds } from "./format.js";

const LANES = 8;
const LOG_Y = 46;
const LANE_Y = 84;
const LANE_H = 24;
const BATCH_Y = LANE_Y + LANES * LANE_H + 22;
const TRAY_Y = BATCH_Y + 62;
export const HEIGHT = TRAY_Y + 40;
const MOST_DROPS = 300;

export class Picture {
  /** `chosen(kind, facts)` is called when a reader chooses a row or a chunk. */
  constructor(chosen) {
    this.chosen = chosen;
    this.span = 20;
    this.width = 800; // until the first call of resize
    this.pixels = this.width / this.span;
    this.counts = { windows: 0, chunks: 0, rows: 0, dropped: 0, batches: 0 };
    this.moving = s("g", {});
    this.fixed = s("g", {});
    this.svg = s("svg", { class: "window", role: "group", "aria-label": "The log, watermarks, chunks and batches, the newest at the right" }, this.fixed, this.moving);
    this.clear(0);
  }

  clear(clock) {
    this.origin = clock;
    this.clock = clock;
    this.items = new Set();
    this.chunks = new Map();
    this.tokens = new Map();
    this.batch = null;
    this.logFrom = null;
    this.drops = 0;
    this.dropped = null;
    this.beside = 0;
    this.moving.replaceChildren();
    this.layers = Object.fromEntries(["log", "marks", "bars", "batches", "drops"].map((name) => [name, s("g", { class: name })]));
    this.moving.append(...Object.values(this.layers));
  }

  resize(width) {
    this.width = width;
    attribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    attribute(this.svg, "height", HEIGHT);
    const label = (y, name) => s("text", { x: 8, y, class: "track" }, name);
    this.fixed.replaceChildren(
      s("line", { x1: 0, x2: width, y1: LOG_Y, y2: LOG_Y, class: "log-line" }),
      ...Array.from({ length: LANES }, (_, lane) => s("rect", { x: 0, width, y: LANE_Y + lane * LANE_H, height: LANE_H - 3, class: "lane" })),
      label(LOG_Y - 26, "log"), label(LANE_Y - 8, "chunks, selected between two watermarks"), label(BATCH_Y - 8, "batches, from plan to commit"), label(TRAY_Y - 16, "rows dropped as stale"),
    );
    this.scale();
  }

  scale() {
    this.pixels = this.width / this.span;
    for (const item of this.items) item.place();
    this.move(this.clock);
  }

  x(at) {
    return (at - this.origin) * this.pixels;
  }

  /** Show the picture at a moment. */
  move(clock) {
    this.clock = clock;
    attribute(this.moving, "transform", `translate(${(this.width - this.x(clock)).toFixed(1)} 0)`);
    const gone = clock - this.span * 1.3;
    for (const item of this.items) {
      if (item.until === null) item.place();
      else if (item.until < gone) {
        item.element.remove();
        this.items.delete(item);
      }
    }
  }

  /** Draw something from one moment to another; `until` null: it goes on. */
  add(layer, element, from, until, place) {
    const item = { element, from, until, place: () => place(this.x(item.from), this.x(item.until ?? Math.max(item.from, this.clock))) };
    this.layers[layer].append(element);
    this.items.add(item);
    item.place();
    return item;
  }

  feed(event) {
    this[event.kind]?.(event);
  }

  // -- the events ---------------------------------------------------------------------------------------------------

  watermark_written({ at, token }) {
    const dot = s("circle", { r: 5, cy: LOG_Y, class: "written" });
    const arc = s("path", { class: "arc" });
    const item = this.add("marks", s("g", {}, arc, dot, s("title", {}, `watermark ${token} is written`)), at, null, (x, to) => {
      attribute(dot, "cx", x);
      attribute(arc, "d", `M${x} ${LOG_Y}Q${(x + to) / 2} ${LOG_Y - 20} ${to} ${LOG_Y}`);
    });
    this.tokens.set(token, item);
  }

  watermark_seen({ at, token, position }) {
    const written = this.tokens.get(token);
    if (written) written.until = at;
    written?.place();
    this.tokens.delete(token);
    for (const [old, item] of this.tokens) {
      if (item.from < at - 60) {
        item.until = item.from;
        this.tokens.delete(old);
      }
    }
    const line = s("line", { y1: LOG_Y - 12, y2: BATCH_Y - 24, class: "mark" });
    const diamond = s("path", { class: "seen" });
    const label = s("text", { y: LOG_Y - 16, class: "token" }, token.slice(0, 4));
    this.add("marks", s("g", {}, line, diamond, label, s("title", {}, `watermark ${token} came back through the log at position ${position}`)), at, at, (x) => {
      attribute(line, "x1", x);
      attribute(line, "x2", x);
      attribute(label, "x", x + 8);
      attribute(diamond, "d", `M${x} ${LOG_Y - 7}l7 7l-7 7l-7 -7z`);
    });
    this.counts.windows += 1;
  }

  round_opened({ at, chunks, selects = [] }) {
    selects.slice(0, LANES).forEach(([id, dump, table], lane) => this.bar(id, dump, table, lane, at));
    if (chunks > LANES) {
      const more = s("text", { y: LANE_Y + LANES * LANE_H + 4, class: "token" }, `and ${plural(chunks - LANES, "chunk")} more`);
      this.add("bars", more, at, at, (x) => attribute(more, "x", x + 4));
    }
  }

  bar(id, dump, table, lane, at) {
    const y = LANE_Y + lane * LANE_H;
    const back = s("rect", { y: y + 2, height: LANE_H - 7, rx: 4, class: "chunk open" });
    const done = s("rect", { y: y + 2, height: LANE_H - 7, rx: 4, class: "selected", width: 0 });
    const label = s("text", { x: 6, y: 12, class: "in-bar" }, table);
    const clip = s("svg", { y: y + 2, height: LANE_H - 7 }, label);
    const element = s("g", { class: "bar-item", tabindex: 0, role: "button", "aria-label": `chunk of ${table}` }, back, done, clip);
    const facts = { id, dump, table, rows: null, seconds: null, emitted: null, dropped: null };
    const item = this.add("bars", element, at, null, (x, to) => {
      const wide = Math.max(3, to - x);
      attribute(back, "x", x);
      attribute(back, "width", wide);
      attribute(done, "x", x);
      attribute(done, "width", facts.seconds === null ? 0 : Math.min(wide, Math.max(3, facts.seconds * this.pixels)));
      attribute(clip, "x", x);
      attribute(clip, "width", wide);
    });
    element.addEventListener("click", () => this.chosen("chunk", facts));
    element.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), this.chosen("chunk", facts)));
    this.chunks.set(id, { item, facts, back, label, lane });
    if (this.chunks.size > 400) this.chunks.delete(this.chunks.keys().next().value);
  }

  chunk_selected({ at, chunk, dump, table, rows, seconds: took }) {
    if (!this.chunks.has(chunk)) return;
    const found = this.chunks.get(chunk);
    Object.assign(found.facts, { rows, seconds: took, dump, table });
    found.item.until = at;
    found.item.place();
    attribute(found.back, "class", "chunk");
    text(found.label, `${table} · ${number(rows)} rows in ${seconds(took)}`);
    this.counts.chunks += 1;
  }

  row_dropped({ at, chunk, dump, table, key, by }) {
    this.counts.dropped += 1;
    if (this.drops >= MOST_DROPS) return;
    const found = this.chunks.get(chunk);
    const lane = found?.lane ?? LANES - 1;
    const dot = s("circle", { r: 5, cx: 0, cy: 0, class: "drop" });
    const element = s("g", { role: "button", tabindex: 0, "aria-label": `row ${key?.join(", ")} of ${table}, dropped` }, dot);
    const facts = { chunk, dump, table, key, by };
    // rows of a batch are dropped at the same moment: draw them side by side, in three rows
    this.beside = this.dropped && at - this.dropped < 0.5 ? this.beside + 1 : 0;
    this.dropped = at;
    const shift = Math.floor(this.beside / 3) * 11;
    const tray = TRAY_Y + (this.beside % 3) * 11;
    this.drops += 1;
    const item = this.add("drops", element, at, at, (x) => attribute(element, "transform", `translate(${x - shift} 0)`));
    const from = LANE_Y + lane * LANE_H + 10;
    dot.style.transform = `translateY(${from}px)`;
    requestAnimationFrame(() => requestAnimationFrame(() => { dot.style.transform = `translateY(${tray}px)`; }));
    const choose = () => {
      this.layers.drops.querySelector(".chosen")?.classList.remove("chosen");
      element.classList.add("chosen");
      this.chosen("row", facts);
    };
    element.addEventListener("click", choose);
    element.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose()));
    const removed = element.remove.bind(element);
    element.remove = () => { this.drops -= 1; removed(); };
    return item;
  }

  chunk_emitted({ chunk, rows, dropped }) {
    this.counts.rows += rows;
    const found = this.chunks.get(chunk);
    if (!found) return;
    Object.assign(found.facts, { emitted: rows, dropped });
    if (found.item.until === null) {
      found.item.until = this.clock;
      found.item.place();
    }
    attribute(found.back, "class", `chunk emitted ${dropped ? "stale" : ""}`);
    text(found.label, `${found.facts.table} · ${number(rows)} delivered${dropped ? `, ${number(dropped)} dropped` : ""}`);
  }

  batch_planned({ at, position, events, chunks }) {
    if (this.batch) this.batch.until ??= at;
    const bar = s("rect", { y: BATCH_Y, height: 20, rx: 4, class: "batch open" });
    const label = s("text", { x: 6, y: 14, class: "in-bar" }, `${plural(events, "event")}${chunks ? ` + ${plural(chunks, "chunk")}` : ""}`);
    const clip = s("svg", { y: BATCH_Y, height: 20 }, label);
    this.batch = this.add("batches", s("g", {}, bar, clip, s("title", {}, `a batch up to position ${position}`)), at, null, (x, to) => {
      const wide = Math.max(3, to - x - 1);
      attribute(bar, "x", x);
      attribute(bar, "width", wide);
      attribute(clip, "x", x);
      attribute(clip, "width", wide);
    });
    this.batch.bar = bar;
    if (events && this.logFrom !== null) this.flow(this.logFrom, at, events);
    this.logFrom = at;
  }

  /** The log between two plans: the more events per second, the thicker the line. */
  flow(from, until, events) {
    const speed = events / Math.max(0.05, until - from);
    const thick = Math.min(12, 2 + 2.2 * Math.log10(1 + speed));
    const line = s("line", { y1: LOG_Y, y2: LOG_Y, class: "flow-line", "stroke-width": thick.toFixed(1) });
    this.add("log", s("g", {}, line, s("title", {}, plural(events, "event"))), from, until, (x, to) => {
      attribute(line, "x1", x);
      attribute(line, "x2", Math.max(x + 2, to));
    });
  }

  offset_committed({ at }) {
    if (this.batch && this.batch.until === null) {
      this.batch.until = at;
      this.batch.place();
      attribute(this.batch.bar, "class", "batch");
      this.counts.batches += 1;
    }
    this.batch = null;
  }

  /** Events are missing: nothing that was open can be trusted to go on. */
  lost(at, count) {
    for (const item of this.items) if (item.until === null) item.until = Math.max(item.from, at);
    this.tokens.clear();
    this.batch = null;
    this.logFrom = null;
    const band = s("rect", { y: 14, height: HEIGHT - 20, class: "lost-band", width: 6 });
    const label = s("text", { y: 12, class: "lost-text" }, `${plural(count, "event")} lost`);
    this.add("marks", s("g", {}, band, label), at, at, (x) => {
      attribute(band, "x", x - 3);
      attribute(label, "x", x + 4);
    });
  }

  events_lost({ at, events }) {
    this.lost(at, events);
  }
}
