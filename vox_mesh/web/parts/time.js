/** Times as people say them, with the exact time on hover; they pass without a request. */
import { html, signal } from "../vendor.js";

const STEPS = /** @type {const} */ ([["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]]);

/** The current time, renewed every second while the page is seen. */
const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1_000);
addEventListener("visibilitychange", () => (now.value = Date.now()));

/** Return a length of time, such as `3 min`.
 * @param {number} ms */
export function duration(ms) {
  const seconds = Math.abs(ms) / 1_000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  for (const [unit, length] of STEPS) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return "0 s";
}

/** A moment: `3 min ago`, or `in 5 s`.
 * @param {{ms: number | null | undefined}} props */
export function Time({ ms }) {
  if (ms === null || ms === undefined) return html`<span class="quiet">–</span>`;
  const passed = now.value - ms;
  const text = Math.abs(passed) < 1_000 ? "now" : passed > 0 ? `${duration(passed)} ago` : `in ${duration(passed)}`;
  const exact = new Date(ms);
  return html`<time datetime=${exact.toISOString()} title=${exact.toLocaleString()}>${text}</time>`;
}

/** How long something has lasted: `3 min`.
 * @param {{ms: number | null | undefined}} props */
export function Since({ ms }) {
  if (ms === null || ms === undefined) return html`<span class="quiet">–</span>`;
  const exact = new Date(ms);
  return html`<time datetime=${exact.toISOString()} title=${`since ${exact.toLocaleString()}`}>${duration(Math.max(0, now.value - ms))}</time>`;
}
