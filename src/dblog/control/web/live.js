// The live window: the picture of the algorithm, its clock (pause, step, slow motion), and what happened in words.

import { events } from "./api.js";
import { attribute, h, keyed, text } from "./dom.js";
import { number, plural, seconds, time, whole } from "./format.js";
import { HEIGHT, Picture } from "./picture.js";

const DELAY_SECONDS = 1.0; // events arrive a little after they happened
const MOST_WAITING = 20000;
const SAID = {
  watermark_written: (e) => `watermark ${e.token.slice(0, 8)} is written`,
  watermark_seen: (e) => `watermark ${e.token.slice(0, 8)} came back through the log`,
  round_opened: (e) => `${plural(e.chunks, "chunk is", "chunks are")} selected`,
  chunk_selected: (e) => `${number(e.rows)} rows of ${e.table} were read in ${seconds(e.seconds)}`,
  row_dropped: (e) => `row ${e.key?.join(", ")} of ${e.table} is dropped: the log has a newer ${e.by?.op ?? "event"}`,
  chunk_emitted: (e) => `${number(e.rows)} rows of ${e.table} are delivered${e.dropped ? `, ${number(e.dropped)} dropped` : ""}`,
  batch_planned: (e) => `a batch of ${plural(e.events, "log event")}${e.chunks ? ` and ${plural(e.chunks, "chunk")}` : ""} begins`,
  offset_committed: () => "the batch is committed",
  dump_started: (e) => `dump ${e.dump} begins`,
  dump_ended: (e) => `dump ${e.dump} is ${e.state}`,
  table_joins: (e) => `table ${e.table} is followed from now on`,
  table_renamed: (e) => `table ${e.table} is called ${e.name} now`,
  table_left_out: (e) => `table ${e.table} is left out: ${e.reason}`,
  events_lost: (e) => `${plural(e.events, "event")} were not recorded`,
};

export function liveTab(root, name) {
  const picture = new Picture(choose);
  const waiting = [];
  let said = [];
  let skew = null;
  let speed = 1;
  let paused = false;
  let live = true;
  let clock = null;
  let lostCount = 0;
  let connected = false;
  let frame = null;
  let last = performance.now();
  const now = () => Date.now() / 1000 - (skew ?? 0) - DELAY_SECONDS;

  // -- controls -----------------------------------------------------------------------------------------------------
  const pause = h("button", { type: "button", onclick: () => hold(!paused) }, "Pause");
  const step = h("button", { type: "button", onclick: stepOn }, "Step");
  const speeds = h("select", { "aria-label": "Speed", onchange: () => slow(Number(speeds.value)) },
    [[1, "at full speed"], [0.5, "at half speed"], [0.25, "at a quarter"], [0.1, "at a tenth"]].map(([value, title]) => h("option", { value: String(value) }, title)));
  const spans = h("select", { "aria-label": "Time in the picture", onchange: () => { picture.span = Number(spans.value); picture.scale(); } },
    [[5, "5 s wide"], [20, "20 s wide"], [60, "1 min wide"], [300, "5 min wide"]].map(([value, title]) => h("option", { value: String(value), selected: value === 20 }, title)));
  const back = h("button", { type: "button", hidden: true, onclick: goLive }, "Back to now");
  const state = h("span", { class: "soft small", "aria-live": "polite" });
  const lostNote = h("p", { class: "problem warn", role: "status", hidden: true });
  const quiet = h("p", { class: "soft small", hidden: true });
  const detail = h("section", { class: "card", "aria-live": "polite", "aria-label": "Chosen" },
    h("h2", {}, "Choose a row or a chunk"), h("p", { class: "soft" }, "Each red dot is a row that a select has read and the log made stale before the window ended. Choose one to see why it was dropped."));
  const counts = h("p", { class: "soft small" });
  const words = h("ol", { class: "words" });
  const stage = h("div", { class: "stage" }, picture.svg);
  root.append(h("div", { class: "stack" },
    h("div", { class: "row" }, pause, step, speeds, spans, back, h("span", { class: "grow" }), state),
    lostNote, h("div", { class: "card stage-card" }, stage, quiet, legend()),
    h("div", { class: "columns" }, detail, h("section", { class: "card" }, h("h2", {}, "What happened"), counts, words))));

  function hold(wanted) {
    paused = wanted;
    if (paused) live = false;
    text(pause, paused ? "Play" : "Pause");
    attribute(pause, "aria-pressed", String(paused));
    showState();
  }

  function slow(wanted) {
    speed = wanted;
    if (speed < 1) live = false;
    showState();
  }

  function stepOn() {
    hold(true);
    if (waiting.length) {
      clock = Math.max(clock, waiting[0].at);
      feed(1);
      picture.move(clock);
    }
    showState();
  }

  function goLive() {
    live = true;
    paused = false;
    speed = 1;
    speeds.value = "1";
    text(pause, "Pause");
    attribute(pause, "aria-pressed", "false");
    showState();
  }

  function showState() {
    const behind = clock === null ? 0 : now() - clock;
    back.hidden = live;
    step.disabled = paused && !waiting.length;
    text(state, !connected ? "connecting" : live ? "live" : `${paused ? "paused" : "slow motion"}, ${seconds(Math.max(0, behind))} behind`);
  }

  // -- the clock ----------------------------------------------------------------------------------------------------
  function feed(most = Infinity) {
    let fed = 0;
    while (waiting.length && fed < most && waiting[0].at <= clock) {
      const event = waiting.shift();
      if (event.kind === "gap") picture.lost(event.at, event.count);
      else {
        picture.feed(event);
        if (SAID[event.kind]) said.push(event);
      }
      fed += 1;
    }
    if (fed) said = said.slice(-200);
    return fed;
  }

  function tick(at) {
    frame = requestAnimationFrame(tick);
    advance(at);
  }

  function advance(at) {
    const passed = Math.min(1, (at - last) / 1000);
    last = at;
    if (clock === null || document.hidden) return;
    if (live) clock = now();
    else if (!paused) clock = Math.min(now(), clock + passed * speed);
    const fed = feed();
    if (!paused || fed) picture.move(clock);
  }

  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const turn = setInterval(() => {
    showState();
    const { windows, chunks, rows, dropped, batches } = picture.counts;
    text(counts, `Since you opened this: ${plural(windows, "watermark")}, ${plural(chunks, "chunk")}, ${whole(rows)} dump rows delivered, ${whole(dropped)} shown as dropped, ${plural(batches, "batch", "batches")}.`);
    keyed(words, said.slice(-14).reverse(), (event) => event.number, (event) => h("li", { class: event.kind === "row_dropped" ? "dropped" : null }, h("time", {}, time(event.at)), " ", SAID[event.kind](event)));
    const recent = said.at(-1);
    quiet.hidden = Boolean(recent && clock - recent.at < picture.span);
    text(quiet, "Nothing happens in this time. Batches appear when the database changes; watermarks and chunks while a dump runs.");
    if (still) advance(performance.now());
  }, 500);

  function begin() {
    if (clock !== null) return;
    clock = now();
    picture.clear(clock);
    if (!still) frame = requestAnimationFrame(tick);
  }

  // -- the events ---------------------------------------------------------------------------------------------------
  const stream = events(name, {
    last: 300,
    state(open) {
      connected = open;
      showState();
    },
    each(number, event) {
      if (skew !== null) skew = Math.min(skew, Date.now() / 1000 - event.at);
      waiting.push({ number, ...event });
      if (waiting.length > MOST_WAITING) missed(waiting.splice(0, waiting.length - MOST_WAITING + 1000).length);
    },
    lost: missed,
  });

  function missed(count) {
    lostCount += count;
    waiting.push({ kind: "gap", at: waiting.at(-1)?.at ?? clock ?? now(), count });
    lostNote.hidden = false;
    text(lostNote, `${plural(lostCount, "event")} did not reach this page: the picture has gaps. The data of the pipeline is not affected.`);
  }

  function choose(kind, facts) {
    const rows = kind === "row"
      ? [["Key", facts.key?.join(", ")], ["Table", facts.table], ["Dump", facts.dump], ["Made stale by", `${facts.by?.op ?? "an event"} at position ${facts.by?.lsn ?? "?"}, number ${facts.by?.seq ?? "?"} in its transaction`]]
      : [["Table", facts.table], ["Dump", facts.dump], ["Chunk", facts.id], ["Rows read", whole(facts.rows)], ["Select took", seconds(facts.seconds)], ["Delivered", whole(facts.emitted)], ["Dropped as stale", whole(facts.dropped)]];
    detail.replaceChildren(
      h("h2", {}, kind === "row" ? "A row that was not delivered" : "A chunk"),
      h("p", { class: "soft" }, kind === "row"
        ? "A select has read this row. Before the window ended, the log showed a newer change of the same key. The log's change was delivered, the row was dropped."
        : "The rows of one range of keys. They are delivered when the next watermark has come back, without those that the log changed."),
      h("dl", { class: "facts" }, rows.flatMap(([title, value]) => [h("dt", {}, title), h("dd", {}, value ?? "–")])));
  }

  const watch = new ResizeObserver(() => picture.resize(Math.max(320, stage.clientWidth)));
  watch.observe(stage);
  stage.style.minHeight = `${HEIGHT}px`;
  return {
    show(found) {
      skew ??= Date.now() / 1000 - found.at;
      begin();
    },
    close() {
      stream.close();
      watch.disconnect();
      clearInterval(turn);
      cancelAnimationFrame(frame);
    },
  };
}

function legend() {
  const entry = (kind, title) => h("span", {}, h("i", { class: `key ${kind}`, "aria-hidden": "true" }), title);
  return h("p", { class: "legend soft small" }, entry("written", "watermark written"), entry("seen", "watermark seen in the log"), entry("chunk", "chunk, dark while its select ran"),
    entry("drop", "row dropped as stale"), entry("batch", "batch"));
}
