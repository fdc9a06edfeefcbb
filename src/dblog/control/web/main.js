// The frame of the page: which view is shown, signing in, the theme, and the banner about the connection.

import { get, link, onSignedOut, request, session } from "./api.js";
import { h, note, text } from "./dom.js";
import { ago } from "./format.js";
import { fleetView } from "./fleet.js";
import { pipelineView } from "./pipeline.js";

const main = document.getElementById("main");
const STALE_SECONDS = 8;
let view = null;
let route = "";

/** #/ is the list of pipelines, #/p/<name>/<tab>/<more> a pipeline. */
function place() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  return parts[0] === "p" && parts[1] ? { name: parts[1], tab: parts[2] ?? "overview", more: parts[3] ?? null } : { name: null };
}

function show() {
  const at = place();
  const same = view?.moved && at.name !== null && at.name === route;
  if (same) {
    view.moved(at);
    return;
  }
  view?.close();
  main.replaceChildren();
  route = at.name;
  document.title = at.name ? `${at.name} · DBLog` : "DBLog";
  document.getElementById("crumbs").replaceChildren(...(at.name ? [h("a", { href: "#/" }, "All pipelines")] : []));
  view = at.name ? pipelineView(main, at) : fleetView(main);
}

// -- signing in ---------------------------------------------------------------------------------------------------

function signIn() {
  view?.close();
  view = null;
  document.title = "Sign in · DBLog";
  text(document.getElementById("crumbs"), "");
  document.getElementById("sign-out").hidden = document.getElementById("who").hidden = true;
  const token = h("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", required: true });
  const name = h("input", { type: "text", id: "name", name: "name", autocomplete: "nickname", maxlength: "80" });
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const form = h("form", { class: "card stack login" },
    h("h1", {}, "Sign in"),
    h("div", { class: "field" }, h("label", { for: "token" }, "Token"), token),
    h("div", { class: "field" }, h("label", { for: "name" }, "Your name ", h("small", {}, "Optional: it is recorded with what you do.")), name),
    wrong,
    h("button", { class: "main", type: "submit" }, "Sign in"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    wrong.hidden = true;
    try {
      Object.assign(session, await request("POST", "/session", { body: { token: token.value, name: name.value || null } }));
      begin();
    } catch (error) {
      wrong.hidden = false;
      text(wrong, error.status === 401 ? "This is not a token of the server." : error.message);
      token.select();
    }
  });
  main.replaceChildren(form);
  token.focus();
}

function begin() {
  const who = document.getElementById("who");
  who.hidden = document.getElementById("sign-out").hidden = !session.token;
  text(who, session.role === "reader" ? `${session.name} (may read)` : session.name);
  who.title = who.textContent;
  route = "";
  show();
}

document.getElementById("sign-out").addEventListener("click", async () => {
  await request("DELETE", "/session").catch((error) => note(error.message, "bad"));
  signIn();
});

// -- theme --------------------------------------------------------------------------------------------------------

const theme = document.getElementById("theme");
const THEMES = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

function useTheme(name) {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = name;
  text(theme, THEMES[name]);
  theme.setAttribute("aria-label", `Theme: ${name}`);
  theme.dataset.name = name;
  document.dispatchEvent(new Event("theme"));
}

theme.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(theme.dataset.name) + 1) % names.length];
  localStorage.setItem("dblog-theme", next);
  useTheme(next);
});
const stored = localStorage.getItem("dblog-theme");
useTheme(stored in THEMES ? stored : "auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

// -- the connection -----------------------------------------------------------------------------------------------

function showLink() {
  const state = document.getElementById("link-state");
  const banner = document.getElementById("banner");
  const lost = link.lost !== null;
  state.className = `link-state ${lost ? "lost" : link.at ? "live" : ""}`;
  text(state.lastElementChild, lost ? "no connection" : link.at ? "live" : "");
  state.title = link.at ? `last answer ${ago(link.at)}` : "";
  banner.classList.toggle("lost", lost);
  const stale = !lost && link.at && !document.hidden && Date.now() / 1000 - link.at > STALE_SECONDS;
  text(banner, lost
    ? `The server does not answer. What you see is ${link.at ? `from ${ago(link.at)}` : "old"}. Trying again.`
    : stale ? `What you see is old: the last answer came ${ago(link.at)}.` : "");
}
link.listeners.add(showLink);
setInterval(() => view && showLink(), 1000);

// -- start --------------------------------------------------------------------------------------------------------

onSignedOut(() => view && signIn());
window.addEventListener("hashchange", () => {
  if (view) show();
});

async function start() {
  try {
    Object.assign(session, await get("/session"));
    begin();
  } catch (error) {
    if (error.status === 401) signIn();
    else {
      main.replaceChildren(h("p", { class: "problem" }, h("strong", {}, error.message), h("span", {}, error.hint ?? "")));
      setTimeout(start, 2000);
    }
  }
}
start();
