/** Keys of the whole page: `g` and a letter opens a screen, `?` shows all of them. */
import { signal } from "../vendor.js";
import { isAsking } from "../parts/dialog.js";
import { go, to } from "./router.js";
import { SCREENS } from "./screens.js";

/** @typedef {{kind: "palette" | "help"}} Opening Each is another one, so an end reported late ends no later one. */

/** Which overlay is open, if any. */
export const overlay = signal(/** @type {Opening | null} */ (null));

/** @param {Opening["kind"]} kind */
export function openOverlay(kind) {
  overlay.value = { kind };
}

export function closeOverlay() {
  overlay.value = null;
}

const SEQUENCE_MS = 1_500;
let lastG = 0;

/** What each key does, for the help.
 * @type {[string, string][]} */
export const KEYS = [
  ["Ctrl K", "Find a job, node, agent or lock, or do something"],
  ["?", "Show this help"],
  ["/", "Go to the filter"],
  ["↑ ↓", "Move in a table; Enter opens the row"],
  ["Esc", "Close"],
  ...SCREENS.map((each) => /** @type {[string, string]} */ ([`g ${each.key}`, each.title])),
];

/** @param {KeyboardEvent} event */
function heard(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (isAsking.value) return;
    // The browser reports the end of a dialog a little after it.
    if (document.querySelector("dialog.palette[open]")) closeOverlay();
    else openOverlay("palette");
    return;
  }
  const target = /** @type {HTMLElement} */ (event.target);
  const isTyping = target.matches?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "?") openOverlay("help");
  else if (event.key === "/") focusFilter(event);
  else if (event.key === "g") lastG = event.timeStamp;
  else if (event.timeStamp - lastG < SEQUENCE_MS) openScreen(event);
}

/** @param {KeyboardEvent} event */
function focusFilter(event) {
  const filter = /** @type {HTMLElement | null} */ (document.querySelector(".filters input, .filters select"));
  if (!filter) return;
  event.preventDefault();
  filter.focus();
}

/** @param {KeyboardEvent} event */
function openScreen(event) {
  lastG = 0;
  const screen = SCREENS.find((each) => each.key === event.key);
  if (screen) go(to(screen.name));
}

addEventListener("keydown", heard);
