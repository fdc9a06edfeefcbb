// The throttle: sliders that change a setting at once.

import { get, repeat, request } from "./api.js";
import { attribute, h, note, text } from "./dom.js";
import { number, seconds } from "./format.js";

const STEPS = 100;
const log = (low, high) => ({
  value: (at) => low * (high / low) ** ((at - 1) / (STEPS - 1)),
  at: (value) => Math.round(1 + ((STEPS - 1) * Math.log(Math.max(value, low) / low)) / Math.log(high / low)),
});
const neat = (value) => Number(value.toPrecision(value >= 100 ? 2 : 1));

// name, title, what the left end means (null), the scale, how a value is shown, whole numbers only
const SLIDERS = [
  ["rows_per_second", "Rows per second", "no limit", log(100, 1e6), (value) => `${number(value)} rows/s`, false],
  ["chunks", "Chunks at the same time", "automatic", log(1, 64), number, true],
  ["chunk_rows", "Rows per chunk", "automatic", log(100, 1e6), (value) => `${number(value)} rows`, true],
  ["max_delay_seconds", "A change may wait for", "automatic", log(0.1, 600), seconds, false],
  ["max_lag_seconds", "Stop while the log is later than", "never", log(0.1, 3600), seconds, false],
  ["delay_seconds", "Pause between rounds", "none", log(0.1, 3600), seconds, false],
];

export function throttle(name, operator) {
  let touched = 0;
  let sent = 0;
  let present = null;
  const change = async (body) => {
    touched = Date.now();
    const mine = ++sent;
    try {
      const answer = await request("PATCH", "/settings", { query: { pipeline: name }, body });
      if (mine === sent) show(answer); // an older answer would undo what was changed since
    } catch (error) {
      note(error.message, "bad");
      reading.now();
    }
  };
  const pause = h("button", { type: "button", disabled: !operator, "aria-pressed": "false", onclick: () => change({ paused: !present?.paused }) }, "Pause all dumps");
  const sliders = SLIDERS.map(([setting, title, none, scale, shown, wholeOnly]) => {
    const value = h("output", { for: `set-${setting}` });
    const input = h("input", { type: "range", id: `set-${setting}`, min: "0", max: String(STEPS), step: "1", disabled: !operator });
    const wanted = () => {
      const at = Number(input.value);
      if (at === 0) return null;
      const exact = neat(scale.value(at));
      return wholeOnly ? Math.max(1, Math.round(exact)) : exact;
    };
    const tell = (given) => {
      const said = given === null || given === 0 ? none : shown(given);
      text(value, said);
      attribute(input, "aria-valuetext", said);
    };
    let timer = null;
    input.addEventListener("input", () => {
      touched = Date.now();
      const given = wanted();
      tell(given);
      clearTimeout(timer);
      timer = setTimeout(() => {
        timer = null;
        change({ [setting]: given });
      }, 200);
    });
    const element = h("div", { class: "slider" }, h("label", { for: `set-${setting}` }, title), value, input);
    const show = (given) => {
      if (timer !== null) return; // the user has moved it, and the change is not sent yet
      input.value = given === null || given === 0 ? 0 : Math.min(STEPS, scale.at(given));
      tell(given);
    };
    return { setting, element, show };
  });
  const probe = h("p", { class: "soft small", hidden: true });
  const element = h("section", { class: "card throttle", "aria-label": "Throttle" },
    h("h2", {}, "Throttle"),
    h("p", { class: "soft small" }, "Limits for dumps. They act at once; changes of the log are always delivered."),
    pause, sliders.map((each) => each.element), probe,
    h("button", { type: "button", class: "quiet", disabled: !operator,
      onclick: () => change(Object.fromEntries(SLIDERS.map(([setting]) => [setting, null]))) }, "Back to the defaults"));

  function show(settings) {
    present = settings;
    attribute(pause, "aria-pressed", String(settings.paused));
    text(pause, settings.paused ? "Resume all dumps" : "Pause all dumps");
    for (const each of sliders) each.show(settings[each.setting]);
    probe.hidden = !settings.probe;
    text(probe, settings.probe ? `Dumps also wait while «${settings.probe}» is above ${settings.probe_max}.` : "");
  }
  const reading = repeat(() => get("/settings", { pipeline: name }), (settings) => {
    if (Date.now() - touched > 1500) show(settings);
  }, { every: 2500 });
  return { element, close: reading.close };
}
