// Figures that renew themselves, and a few keys. Everything works without this file, too.
"use strict";

const FIRST_MS = 1000; // figures of growth come with the second look
const EVERY_MS = 2500;
const PATIENCE_MS = 15000;
const section = document.querySelector("[data-live]");
const button = document.getElementById("live");
let isOn = true;

function say(state, title) {
  button.dataset.state = state;
  button.setAttribute("aria-pressed", String(isOn));
  button.textContent = isOn ? (state === "bad" ? "no answer" : "live") : "paused";
  button.title = title;
}

function isInUse() {
  const selection = getSelection();
  return !selection.isCollapsed && section.contains(selection.anchorNode);
}

// What has the focus keeps it, as far as it is still there.
function replace(text) {
  const made = new DOMParser().parseFromString(text, "text/html");
  const active = document.activeElement;
  const address = section.contains(active) ? active.getAttribute("href") : null;
  section.replaceChildren(...made.body.childNodes);
  if (address !== null) {
    for (const link of section.querySelectorAll("a[href]")) {
      if (link.getAttribute("href") === address) {
        link.focus({ preventScroll: true });
        break;
      }
    }
  }
}

async function renew() {
  const began = performance.now();
  if (isOn && !document.hidden && !isInUse()) {
    try {
      const answer = await fetch(section.dataset.live, { signal: AbortSignal.timeout(PATIENCE_MS) });
      if (!answer.ok) throw new Error(answer.statusText);
      const text = await answer.text();
      if (isOn && !isInUse()) replace(text);
      say("ok", "Figures are renewed by themselves, at " + new Date().toLocaleTimeString());
    } catch (error) {
      say("bad", String(error));
    }
  }
  // A cluster that takes long to answer is asked less often.
  setTimeout(renew, Math.max(EVERY_MS, 4 * (performance.now() - began)));
}

function toggle() {
  isOn = !isOn;
  say("ok", isOn ? "Figures are renewed by themselves" : "Figures stay as they are");
}

function step(by) {
  const rows = [...document.querySelectorAll("a.row")];
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  if (next) next.focus();
}

function follow(rel) {
  const link = document.querySelector(`a[rel=${rel}]`);
  if (link) link.click();
}

const KEYS = {
  "/": () => document.querySelector("[data-find]")?.focus(),
  j: () => step(1),
  k: () => step(-1),
  n: () => follow("next"),
  p: () => follow("prev"),
  l: () => section && toggle(),
};

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    act();
  }
});

if (section) {
  button.hidden = false;
  button.addEventListener("click", toggle);
  say("ok", "Figures are renewed by themselves");
  setTimeout(renew, FIRST_MS);
}
