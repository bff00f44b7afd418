/** Short notices at the edge of the page, read out by screen readers. */
import { html, signal } from "../vendor.js";
import { Icon } from "./icon.js";

const SHOWN_MS = 6_000;
const MAX_SHOWN = 4;

/** @type {import("../vendor.js").Signal<{id: number, text: string, isBad: boolean}[]>} */
const toasts = signal([]);
let lastId = 0;

/** Show a notice.
 * @param {string} text @param {{isBad?: boolean}} [options] */
export function toast(text, { isBad = false } = {}) {
  const id = ++lastId;
  toasts.value = [...toasts.value.slice(1 - MAX_SHOWN), { id, text: text.slice(0, 500), isBad }];
  setTimeout(() => dismiss(id), isBad ? 2 * SHOWN_MS : SHOWN_MS);
}

/** @param {number} id */
function dismiss(id) {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(
      (each) => html`<div class=${each.isBad ? "toast bad" : "toast"} key=${each.id}>
        <span class="data">${each.text}</span>
        <button class="plain small" aria-label="Dismiss" onClick=${() => dismiss(each.id)}><${Icon} name="cross" /></button>
      </div>`,
    )}
  </div>`;
}
