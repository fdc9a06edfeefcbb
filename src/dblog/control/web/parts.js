// Parts that several views use: state badges, the split of the lag, sparklines, bars.

import { h, s, attribute, text } from "./dom.js";
import { bytes } from "./format.js";

export const LAG_PARTS = [
  ["capture", "in the database, not captured yet"],
  ["spool", "captured, in no batch yet"],
  ["sink", "in the batch that the sink writes"],
];

export function badge(severity, label) {
  return h("span", { class: `badge ${severity}` }, label);
}

export function setBadge(element, severity, label) {
  attribute(element, "class", `badge ${severity}`);
  text(element, label);
}

/** A bar with the bytes of lag in capture, spool and sink. */
export function lagBar() {
  const parts = LAG_PARTS.map(([name]) => h("i", { class: name }));
  return h("span", { class: "lag-bar", role: "img" }, parts);
}

export function setLagBar(element, lag) {
  const all = lag ? lag.capture + lag.spool + lag.sink : 0;
  LAG_PARTS.forEach(([name], at) => {
    element.children[at].style.width = all ? `${(100 * lag[name]) / all}%` : "0";
  });
  attribute(element, "aria-label", lag ? LAG_PARTS.map(([name]) => `${name} ${bytes(lag[name])}`).join(", ") : "lag not known");
}

/** A line of the last values, without axes. */
export function sparkline(label) {
  const line = s("path", { class: "line", fill: "none" });
  const area = s("path", { class: "area" });
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label }, area, line);
}

export function setSparkline(element, values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const most = Math.max(...known, 0) || 1;
  const step = values.length > 1 ? 100 / (values.length - 1) : 100;
  let path = "";
  let open = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      open = false;
      return;
    }
    path += `${open ? "L" : "M"}${(at * step).toFixed(1)} ${(22 - (20 * value) / most).toFixed(1)}`;
    open = true;
  });
  const [area, line] = element.children;
  attribute(line, "d", path || "M0 22");
  attribute(area, "d", known.length > 1 && known.length === values.length ? `${path}L100 24L0 24Z` : "M0 24");
}

/** A number with a title: `set(value, more)`. */
export function tile(title, help) {
  const value = h("strong", {}, "–");
  const more = h("span", { class: "soft small" });
  const element = h("div", { class: "tile", title: help }, h("span", { class: "soft small" }, title), value, more);
  return { element, set(shown, rest = "") { text(value, shown); text(more, rest); } };
}

/** A bar with its share done: `set(part, all)`. */
export function progressBar(label) {
  const done = h("i");
  const element = h("div", { class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, done);
  return {
    element,
    set(part, all, name) {
      const share = all ? Math.min(100, (100 * part) / all) : 0;
      done.style.width = `${share}%`;
      attribute(element, "aria-valuenow", all ? Math.floor(share) : null);
      if (name) attribute(element, "aria-label", name);
    },
  };
}
