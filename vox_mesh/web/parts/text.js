/** Text of agents and users: always shown as text, with what can't be seen made visible, and never whole if it is long. */
import { html, useState } from "../vendor.js";
import { copyText } from "./clipboard.js";
import { Icon } from "./icon.js";
import { toast } from "./toast.js";

const MAX_CHARACTERS = 2_000;
// Control characters but tab and line feed, and characters that reorder text or show nothing. Of those that only choose
// the form of the character before them, the one of pictures is no danger.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\u2800\ufff9-\ufffb]|(?!(?<=\p{Extended_Pictographic})\ufe0f)\p{Default_Ignorable_Code_Point}/u;
const BY_UNSEEN = new RegExp(`(${UNSEEN.source})`, "u");

/** Return the pieces of a text, with unseen characters named.
 * @param {string} text */
function pieces(text) {
  if (!UNSEEN.test(text)) return [text];
  return text.split(BY_UNSEEN).map((piece, at) => (at % 2 === 0 ? piece : html`<span class="control" title="A character that can't be seen">U+${codeOf(piece)}</span>`));
}

/** Return a text for an attribute, with unseen characters named.
 * @param {string} text */
export function plain(text) {
  return text.split(BY_UNSEEN).map((piece, at) => (at % 2 === 0 ? piece : `[U+${codeOf(piece)}]`)).join("");
}

/** @param {string} character */
function codeOf(character) {
  return (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
}

/** Several lines of text; a long one is cut, and can be opened.
 * @param {{text: unknown, max?: number}} props */
export function Text({ text, max = MAX_CHARACTERS }) {
  const [isWhole, setWhole] = useState(false);
  const whole = typeof text === "string" ? text : text === null || text === undefined ? "" : JSON.stringify(text);
  const isCut = whole.length > max && !isWhole;
  const limit = isWhole ? 200_000 : max;
  return html`<span class="data">${pieces(whole.slice(0, limit))}${isCut && "… "}${isCut &&
  html`<button type="button" class="plain small" onClick=${() => setWhole(true)}>Show ${whole.length.toLocaleString("en")} characters</button>`}${
    isWhole && whole.length > limit && `… (cut after ${limit.toLocaleString("en")} characters)`
  }</span>`;
}

/** One line of text, cut where it ends; the title shows more of it.
 * @param {{text: unknown, max?: number}} props */
export function Line({ text, max = 200 }) {
  const whole = text === null || text === undefined ? "" : typeof text === "string" ? text : JSON.stringify(text);
  const first = whole.slice(0, max).replaceAll(/[\n\r\t]+/g, " ");
  return html`<span class="data one" title=${whole.length > 40 ? plain(whole.slice(0, 500)) : undefined}>${pieces(first)}${whole.length > max ? "…" : ""}</span>`;
}

/** An id that can be copied; `href` links it.
 * @param {{id: string, length?: number, label?: string, children?: any}} props */
export function Id({ id, length = 12, label = "id", children }) {
  const shown = id.length > length + 1 ? `${id.slice(0, length)}…` : id;
  const copy = async () => {
    const isCopied = await copyText(id);
    toast(isCopied ? `Copied the ${label}.` : `The browser does not let this page copy: ${id}`, { isBad: !isCopied });
  };
  return html`<span class="id" title=${plain(id)}>${children ?? html`<span class="data one">${pieces(shown)}</span>`}<button
      type="button"
      class="plain"
      aria-label=${`Copy the ${label}`}
      onClick=${copy}
    ><${Icon} name="copy" /></button></span>`;
}

/** A value as JSON.
 * @param {{value: any}} props */
export function Json({ value }) {
  return html`<pre class="code" tabindex="0"><${Text} text=${JSON.stringify(value, null, 2)} max=${20_000} /></pre>`;
}
