/** A table of any length: only rows that can be seen are drawn, and more are read when their end comes near. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor.js";

const ROW = 40;
const TALL_ROW = 58;
const HEAD = 36;
const SPARE = 8;
const NEAR = 30;
const BELOW = 84;

/**
 * @template T
 * @typedef {{name: string, label: any, width?: string, isRight?: boolean, isWide?: boolean, isLabelUnseen?: boolean, cell: (row: T) => any, narrow?: (row: T) => any}} Column
 * `isWide`: left out where there is little room; `narrow`: what is shown there instead of the cell, with room for
 * two lines; `isLabelUnseen`: the label is read out only.
 */

const narrow = matchMedia("(max-width: 820px)");

/** Whether there is little room. */
export function useNarrow() {
  const [isNarrow, setNarrow] = useState(narrow.matches);
  useEffect(() => {
    const change = () => setNarrow(narrow.matches);
    narrow.addEventListener("change", change);
    return () => narrow.removeEventListener("change", change);
  }, []);
  return isNarrow;
}

/**
 * @template T
 * @param {{label: string, rows: T[], columns: Column<T>[], keyOf: (row: T) => string, more?: (() => void) | null,
 *   foot?: any, open?: (row: T) => void, height?: number, shows?: (rows: T[]) => void}} props
 * `height`: the most, with room for more rows than that by scrolling; `more`: reads further rows; `open`: what Enter on a row does; `shows`: hears which rows can be seen.
 */
export function Table({ label, rows, columns, keyOf, more, foot, open, height, shows }) {
  const isNarrow = useNarrow();
  const rowHeight = isNarrow && columns.some((each) => each.narrow) ? TALL_ROW : ROW;
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, room: 600, above: 200 });
  const measure = () => {
    const element = scroller.current;
    if (!element) return;
    setView((before) => {
      const above = Math.round(element.getBoundingClientRect().top + scrollY);
      const after = { top: Math.floor(element.scrollTop / rowHeight), room: element.clientHeight, above };
      return after.top === before.top && after.room === before.room && after.above === before.above ? before : after;
    });
  };
  useLayoutEffect(measure, [rows.length]);
  useEffect(() => {
    const watching = new ResizeObserver(measure);
    if (scroller.current) watching.observe(scroller.current);
    return () => watching.disconnect();
  }, []);
  const first = Math.max(0, view.top - SPARE);
  const last = Math.min(rows.length, view.top + Math.ceil(view.room / rowHeight) + SPARE);
  useEffect(() => {
    if (more && last + NEAR >= rows.length) more();
  }, [last, rows.length, more]);
  useEffect(() => shows?.(rows.slice(first, last)), [first, last, rows]);
  const shown = columns.filter((each) => !(isNarrow && each.isWide));
  const template = { gridTemplateColumns: shown.map((each) => each.width ?? "minmax(0, 1fr)").join(" ") };
  const whole = rows.length * rowHeight + HEAD + 2;
  const room = Math.min(whole, height ?? Math.max(320, innerHeight - view.above - BELOW));
  const moveBy = (/** @type {KeyboardEvent} */ event) => move(event, scroller.current, rows, rowHeight, open);
  return html`<div class="table">
    <div class="scroll" ref=${scroller} style=${{ height: `${room}px` }} onScroll=${measure} tabindex="0" role="table" aria-label=${label} aria-rowcount=${rows.length + 1} onKeyDown=${moveBy}>
      <div class="line head" role="row" aria-rowindex="1" style=${template}>
        ${shown.map((each) => html`<div class=${each.isRight ? "cell right" : "cell"} role="columnheader" key=${each.name}><span class=${each.isLabelUnseen ? "unseen" : ""}>${each.label}</span></div>`)}
      </div>
      <div class="body" role="presentation" style=${{ height: `${rows.length * rowHeight}px` }}>
        ${rows.slice(first, last).map(
          (row, offset) => html`<div
            class="line"
            role="row"
            key=${keyOf(row)}
            data-row=${first + offset}
            aria-rowindex=${first + offset + 2}
            style=${{ ...template, height: `${rowHeight}px`, top: `${(first + offset) * rowHeight}px` }}
          >
            ${shown.map((each) => html`<div class=${each.isRight ? "cell right" : "cell"} role="cell" key=${each.name}>${(isNarrow && each.narrow ? each.narrow : each.cell)(row)}</div>`)}
          </div>`,
        )}
      </div>
    </div>
    ${foot && html`<div class="foot" role="status">${foot}</div>`}
  </div>`;
}

/** Move between rows with the arrow keys; Enter opens one.
 * @param {KeyboardEvent} event @param {HTMLElement | null} scroller @param {any[]} rows @param {number} rowHeight @param {((row: any) => void)} [open] */
function move(event, scroller, rows, rowHeight, open) {
  const line = /** @type {HTMLElement} */ (event.target).closest("[data-row]");
  const at = line ? Number(line.getAttribute("data-row")) : -1;
  const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
  if (event.key === "Enter" && event.target === line && open && rows[at]) return open(rows[at]);
  if (!step || !scroller) return;
  event.preventDefault();
  const next = Math.min(rows.length - 1, Math.max(0, at + step));
  const top = next * rowHeight;
  const bottom = top + rowHeight + HEAD;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  if (bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = bottom - scroller.clientHeight;
  requestAnimationFrame(() => {
    const target = /** @type {HTMLElement | null} */ (scroller.querySelector(`[data-row="${next}"]`));
    target?.setAttribute("tabindex", "-1");
    target?.focus({ preventScroll: true });
  });
}

/** Two lines of a row where there is little room: the thing itself, and what is said of it.
 * @param {{top: any, below: any}} props */
export function TwoLines({ top, below }) {
  return html`<span class="two-lines"><span>${top}</span><span class="small quiet">${below}</span></span>`;
}
