/** Base, left and right of each column side by side, with a choice between them or another value. */
import { html, useState } from "../../vendor.js";
import { Badge } from "../../parts/badge.js";
import { Icon } from "../../parts/icon.js";
import { Line, Text } from "../../parts/text.js";
import { differing, isNumeric, mergedSide, shown } from "./sides.js";

/** How many characters around a difference are shown. */
const AROUND = 60;

/** @typedef {import("./sides.js").Column} Column */
/** @typedef {import("./sides.js").Choice} Choice */
/** @typedef {import("./sides.js").Side} Side */

/** @type {{side: Side, title: string}[]} */
const SIDES = [{ side: "base", title: "Base" }, { side: "left", title: "Left" }, { side: "right", title: "Right" }];

/** What happened to a column, by shape and text.
 * @type {Record<string, {text: string, shape: string, tone: import("../../parts/badge.js").Tone}>} */
const CHANGES = {
  clash: { text: "both changed it", shape: "diamond", tone: "bad" },
  left: { text: "left changed it", shape: "half", tone: "warn" },
  right: { text: "right changed it", shape: "half", tone: "warn" },
  alike: { text: "both changed it alike", shape: "check", tone: "good" },
};

/** @param {{column: Column, choice?: Choice, choose?: (choice: Choice) => void, taken?: Side}} props
 * Without `choose` it can only be looked at; `taken` is what was decided then. */
export function ColumnChoice({ column, choice = {}, choose, taken }) {
  const side = choose ? (choice.side ?? mergedSide(column)) : taken;
  const change = CHANGES[column.change];
  const note = change && html`<${Badge} state=${column.change} ...${change} />`;
  return html`<fieldset class="conflicts-column">
    <legend><code><${Line} text=${column.name} max=${80} /></code>${note}${choose && !side && html`<span class="conflicts-open">Choose one</span>`}</legend>
    <div class=${choose ? "conflicts-sides own" : "conflicts-sides"}>
      ${SIDES.map((each) => html`<${SideValue} key=${each.side} ...${each} column=${column} isTaken=${each.side === side} choose=${choose} />`)}
      ${choose && html`<${OwnValue} column=${column} choice=${choice} choose=${choose} />`}
    </div>
  </fieldset>`;
}

/** @param {{column: Column, side: Side, title: string, isTaken: boolean, choose?: (choice: Choice) => void}} props */
function SideValue({ column, side, title, isTaken, choose }) {
  const value = /** @type {any} */ (column)[side];
  const isChanged = side !== "base" && (column.change === side || column.change === "clash" || column.change === "alike");
  const head = html`<span class="conflicts-side-head">
    ${choose && html`<input type="radio" name=${`column ${column.name}`} value=${side} checked=${isTaken} disabled=${value === undefined} onChange=${() => choose({ side })} />`}
    ${!choose && isTaken && html`<${Icon} name="check" />`}<strong>${title}</strong>
    ${isChanged && html`<span class="conflicts-changed"><${Icon} name="half" />changed</span>`}${!choose && isTaken && html`<span>taken</span>`}
  </span>`;
  const body = value === undefined ? html`<span class="quiet">no value</span>` : html`<${Value} text=${shown(value)} base=${isChanged && column.base !== undefined ? shown(column.base) : null} />`;
  const kind = `conflicts-side${isTaken ? " taken" : ""}${isChanged ? " changed" : ""}`;
  return choose ? html`<label class=${kind}>${head}${body}</label>` : html`<div class=${kind}>${head}${body}</div>`;
}

/** A value, with what differs from the base marked; of a long one, only what is around that.
 * @param {{text: string, base: string | null}} props */
function Value({ text, base }) {
  const [isWhole, setWhole] = useState(false);
  if (base === null) return html`<code><${Text} text=${text} max=${400} /></code>`;
  const [before, middle, after] = differing(text, base);
  const isCut = !isWhole && before.length + after.length > 4 * AROUND;
  return html`<code>
    <${Text} text=${isCut && before.length > AROUND ? `…${before.slice(-AROUND)}` : before} max=${20_000} />
    <mark>${middle ? html`<${Text} text=${middle} max=${400} />` : "(removed)"}</mark>
    <${Text} text=${isCut && after.length > AROUND ? `${after.slice(0, AROUND)}…` : after} max=${20_000} />
    ${isCut && html` <button type="button" class="plain small" onClick=${() => setWhole(true)}>Show all</button>`}
  </code>`;
}

/** @param {{column: Column, choice: Choice, choose: (choice: Choice) => void}} props */
function OwnValue({ column, choice, choose }) {
  const isTaken = choice.side === "own";
  const isBytes = [column.base, column.left, column.right].some((each) => each?.$base64 !== undefined);
  if (isBytes) return null;
  const label = isNumeric(column) ? "Another number" : "Another text";
  const start = String(column.right?.$int ?? column.right ?? column.left?.$int ?? column.left ?? "");
  const write = (/** @type {InputEvent} */ event) => choose({ side: "own", text: /** @type {HTMLTextAreaElement} */ (event.currentTarget).value });
  return html`<div class=${isTaken ? "conflicts-side taken" : "conflicts-side"}>
    <label class="conflicts-side-head">
      <input type="radio" name=${`column ${column.name}`} value="own" checked=${isTaken} onChange=${() => choose({ side: "own", text: choice.text ?? start })} />
      <strong>${label}</strong>
    </label>
    <textarea rows="1" aria-label=${`${label} for ${column.name}`.slice(0, 120)} value=${choice.text ?? ""} onInput=${write}></textarea>
  </div>`;
}

/** All columns: those in question, and the others behind a line that opens.
 * @param {{columns: Column[], choices?: Record<string, Choice>, choose?: (name: string, choice: Choice) => void, takenOf?: (column: Column) => Side | undefined}} props */
export function Columns({ columns, choices = {}, choose, takenOf }) {
  const one = (/** @type {Column} */ each) => html`<${ColumnChoice}
    key=${each.name}
    column=${each}
    choice=${choices[each.name]}
    choose=${choose && ((/** @type {Choice} */ choice) => choose(each.name, choice))}
    taken=${takenOf?.(each)}
  />`;
  const open = columns.filter((each) => each.change !== "");
  const same = columns.filter((each) => each.change === "");
  return html`<div class="conflicts-columns">
    ${open.map(one)}
    ${same.length > 0 && html`<details><summary>${same.length === 1 ? "1 column" : `${same.length} columns`} without a change</summary><div class="conflicts-columns">${same.map(one)}</div></details>`}
  </div>`;
}
