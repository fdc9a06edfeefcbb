// Numbers, sizes and times for people.

const UNKNOWN = "–";
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 1234567 as 1.23 M */
export function number(value) {
  if (missing(value)) return UNKNOWN;
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (size >= unit) return trim(value / (name === " k" ? 1e3 : unit)) + name;
  }
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : trim(value);
}

export function whole(value) {
  return missing(value) ? UNKNOWN : Math.round(value).toLocaleString("en");
}

export function rate(value, unit) {
  return missing(value) ? UNKNOWN : `${number(value)} ${unit}/s`;
}

export function bytes(value) {
  if (missing(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at ? trim(value) : Math.round(value)} ${units[at]}`;
}

/** A duration in seconds, in its two greatest units. */
export function seconds(value) {
  if (missing(value)) return UNKNOWN;
  if (value < 0.9995) return value < 0.0005 ? "0 s" : `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const whole = Math.round(value);
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  return units.slice(first, first + 2).map(([name, size], at) => {
    const part = at ? Math.floor((whole % units[first][1]) / size) : Math.floor(whole / size);
    return part || !at ? `${part} ${name}` : "";
  }).filter(Boolean).join(" ");
}

export function ago(at, now = Date.now() / 1000) {
  if (missing(at)) return UNKNOWN;
  const since = Math.max(0, now - at);
  return since < 1.5 ? "now" : `${seconds(since)} ago`;
}

export function clock(at) {
  return missing(at) ? UNKNOWN : new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function time(at) {
  return missing(at) ? UNKNOWN : new Date(at * 1000).toLocaleTimeString(undefined, { timeStyle: "medium" });
}

export function plural(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

export function percent(part, all) {
  return all ? `${Math.min(100, Math.floor((100 * part) / all))} %` : UNKNOWN;
}

function trim(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}
