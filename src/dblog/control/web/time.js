// The last hours of a pipeline: lag, throughput, duration of batches, dropped rows.

import { get, repeat } from "./api.js";
import { h, text } from "./dom.js";
import { bytes, number, seconds, time } from "./format.js";
import uPlot from "./vendor/uPlot.esm.js";

const SPANS = [["15 min", 900], ["1 h", 3600], ["4 h", 4 * 3600], ["8 h", 8 * 3600]];
const CHARTS = [
  ["Lag", seconds, [["lag_seconds", "delivery", "--accent"], ["capture_lag_seconds", "capture", "--capture"]]],
  ["Log events per second", number, [["events_per_second", "log events", "--accent"]]],
  ["Dump rows per second", number, [["rows_per_second", "delivered", "--sink"], ["dropped_per_second", "dropped as stale", "--bad"]]],
  ["Duration of batches", seconds, [["batch_seconds", "mean", "--spool"]]],
  ["Log kept by the database", bytes, [["retained_bytes", "kept", "--warn"]]],
  ["Spool", bytes, [["spool_bytes", "size", "--capture"]]],
];

const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);

export function timeTab(root, name) {
  let span = 3600;
  const choices = SPANS.map(([title, length]) => {
    const button = h("button", { type: "button", "aria-pressed": String(length === span) }, title);
    button.addEventListener("click", () => {
      span = length;
      choices.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      reading.now();
    });
    return button;
  });
  const charts = CHARTS.map(chart);
  const empty = h("p", { class: "empty", hidden: true }, "There are no samples of this time yet: a running pipeline adds one every 15 s.");
  root.append(h("div", { class: "stack" }, h("div", { class: "row", role: "group", "aria-label": "Time" }, choices), empty,
    h("div", { class: "columns charts" }, charts.map((each) => each.element))));
  const reading = repeat(() => get("/history", { pipeline: name, seconds: span }), (found) => {
    const since = Date.now() / 1000 - span;
    const points = found.points.filter((point) => point.at >= since);
    empty.hidden = points.length > 1;
    for (const each of charts) each.show(points, since);
  }, { every: 5000 });
  const again = () => charts.forEach((each) => each.redraw());
  document.addEventListener("theme", again);
  return {
    close() {
      reading.close();
      document.removeEventListener("theme", again);
      charts.forEach((each) => each.close());
    },
  };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Colours of the page as canvas understands them: the browser resolves light-dark() for an element. */
function resolved(name) {
  const probe = h("i", {});
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found || colour(name);
}

function chart([title, shown, lines]) {
  const place = h("div", { class: "plot" });
  const now = h("span", { class: "row small" }, lines.map(([, , tone]) => {
    const key = h("i", { class: "key" });
    key.style.background = `var(${tone})`;
    return h("span", { class: "value" }, lines.length > 1 ? key : null, h("span", {}));
  }));
  const when = h("span", { class: "soft small" });
  const element = h("section", { class: "card", "aria-label": title }, h("div", { class: "row" }, h("h2", {}, title), when, h("span", { class: "grow" }), now), place);
  const described = h("p", { class: "hidden" });
  element.append(described);
  let plot = null;
  let data = null;
  let since = 0;

  /** The values at one moment, or the last ones. */
  function tell(index) {
    const at = index ?? data[0].length - 1;
    lines.forEach(([, label], line) => text(now.children[line].lastElementChild, `${lines.length > 1 ? `${label} ` : ""}${at < 0 ? "–" : shown(data[line + 1][at])}`));
    text(when, index === null || index === undefined ? "" : time(data[0][index]));
  }

  function draw() {
    if (!data || !place.clientWidth) return;
    plot?.destroy();
    const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    plot = new uPlot({
      width: place.clientWidth, height: 190,
      scales: { x: { time: true, range: () => [since, Date.now() / 1000] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, size: 28, space: 70, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toTimeString().slice(0, 5)) },
        { ...axis, size: 70, values: (_, ticks) => ticks.map(shown), ...(shown === bytes ? { incrs: BYTES } : {}) },
      ],
      legend: { show: false }, hooks: { setCursor: [(at) => tell(at.cursor.idx)] }, cursor: { points: { size: 6 } },
      series: [{}, ...lines.map(([, label, tone]) => ({
        label, stroke: resolved(tone), width: 1.8, spanGaps: false, points: { show: false },
      }))],
    }, data, place);
  }

  const watch = new ResizeObserver(() => {
    if (plot && place.clientWidth) plot.setSize({ width: place.clientWidth, height: 190 });
    else draw();
  });
  watch.observe(place);
  return {
    element,
    show(points, from) {
      since = from;
      data = [points.map((point) => point.at), ...lines.map(([field]) => points.map((point) => point[field]))];
      if (plot) plot.setData(data);
      else draw();
      tell(null);
      text(described, lines.map(([field, label]) => {
        const known = points.map((point) => point[field]).filter((value) => value !== null);
        return known.length ? `${label}: at least ${shown(Math.min(...known))}, at most ${shown(Math.max(...known))}.` : "";
      }).join(" "));
    },
    redraw: draw,
    close() {
      watch.disconnect();
      plot?.destroy();
    },
  };
}
