/** The sides of a conflict, column by column: who changed what, and what a choice of sides means. */

/**
 * @typedef {"base" | "left" | "right" | "own"} Side
 * @typedef {"" | "left" | "right" | "alike" | "clash"} Change
 * @typedef {{name: string, base: any, left: any, right: any, change: Change}} Column `undefined`: the side lacks it
 * @typedef {{side?: Side, text?: string}} Choice
 * @typedef {{conflict_id: string, table_name: string, row_key: Record<string, any>, base: Record<string, any> | null,
 *   left: Record<string, any>, right: Record<string, any> | null, left_node: string, left_agent: string | null,
 *   right_node: string | null, strategy: string, deferred_to: string | null, state: string, created_at: string,
 *   resolved_at: string | null, resolved_by: string | null, resolved_agent: string | null, resolution: string | null,
 *   reason: string | null}} Conflict
 */

/** Columns that the mesh sets. */
const SET_BY_MESH = ["written_at", "scope_id", "repository_id"];

/** Return the document of a text, with integers that JavaScript would round kept as text.
 * @param {string} text @returns {any} */
export function exactly(text) {
  // @ts-ignore: the types do not know the source of a value yet
  return JSON.parse(text, (_key, value, context) => {
    const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
    return isRounded && context?.source ? { $int: context.source } : value;
  });
}

/** Texts that would look like another value, or like nothing. */
const AMBIGUOUS = /^(?:[-\d[{"].*|null|true|false||\s.*|.*\s)$/s;

/** Return a value as text.
 * @param {any} value @returns {string} */
export function shown(value) {
  if (typeof value === "string") return AMBIGUOUS.test(value) ? JSON.stringify(value) : value;
  if (value?.$base64 !== undefined) return `bytes: ${value.$base64}`;
  return value?.$int ?? value?.$real ?? JSON.stringify(value);
}

/** Return a text in three parts: what it has in common with another at its start, what differs, and its common end.
 * @param {string} text @param {string} other @returns {[string, string, string]} */
export function differing(text, other) {
  const most = Math.min(text.length, other.length);
  let start = 0;
  while (start < most && text[start] === other[start]) start += 1;
  let end = 0;
  while (end < most - start && text.at(-1 - end) === other.at(-1 - end)) end += 1;
  if (isHigh(text, start - 1)) start -= 1;
  if (end > 0 && isHigh(text, text.length - end - 1)) end -= 1;
  return [text.slice(0, start), text.slice(start, text.length - end), text.slice(text.length - end)];
}

/** Whether the first half of a pair of characters is here.
 * @param {string} text @param {number} at */
function isHigh(text, at) {
  return (text.charCodeAt(at) & 0xfc00) === 0xd800;
}

/** @param {any} one @param {any} other */
function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Return the columns that can be decided on, those in question first.
 * @param {Conflict} conflict @returns {Column[]} */
export function columnsOf({ row_key, base, left, right }) {
  const fixed = new Set([...SET_BY_MESH, ...Object.keys(row_key)]);
  const names = Object.keys({ ...right, ...left }).filter((name) => !fixed.has(name));
  const columns = names.map((name) => {
    const values = { name, base: base?.[name], left: left[name], right: right?.[name] };
    return { ...values, change: changeOf(values) };
  });
  return columns.sort((one, other) => rank(one.change) - rank(other.change));
}

/** @param {{base: any, left: any, right: any}} values @returns {Change} */
function changeOf({ base, left, right }) {
  const isLeft = left !== undefined && !isSame(left, base);
  const isRight = right !== undefined && !isSame(right, base);
  if (isLeft && isRight) return isSame(left, right) ? "alike" : "clash";
  return isLeft ? "left" : isRight ? "right" : "";
}

/** @param {Change} change */
function rank(change) {
  return ["clash", "left", "right", "alike", ""].indexOf(change);
}

/** Return what a merge takes of a column; nothing where a person must choose.
 * @param {Column} column @returns {Side | undefined} */
export function mergedSide({ change, right }) {
  if (change === "clash") return undefined;
  return change === "left" || right === undefined ? "left" : "right";
}

/** Return the side of each column that a resolution by name has taken; nothing for values of a person.
 * @param {string | null} resolution @param {Column} column @returns {Side | undefined} */
export function takenSide(resolution, column) {
  if (resolution === "left" || resolution === "right") return resolution;
  return resolution === "merge" ? mergedSide(column) : undefined;
}

/** Return the request that resolves a conflict as chosen. Throws an error where a choice is missing or no value.
 * @param {Column[]} columns @param {Record<string, Choice>} choices */
export function resolutionOf(columns, choices) {
  const sideOf = (/** @type {Column} */ each) => choices[each.name]?.side ?? mergedSide(each);
  const missing = columns.filter((each) => !sideOf(each)).map((each) => each.name);
  if (missing.length > 0) throw new Error(`Choose a value for ${missing.join(", ")}.`);
  const changed = columns.filter((each) => !isSame(each.left, each.right));
  for (const side of /** @type {const} */ (["right", "left"])) {
    if (columns.every((each) => sideOf(each) === side || !changed.includes(each))) return { take: side };
  }
  if (columns.every((each) => sideOf(each) === mergedSide(each))) return { take: "merge" };
  const sided = columns.filter((each) => sideOf(each) === "left" || sideOf(each) === "base");
  const own = columns.filter((each) => sideOf(each) === "own");
  return {
    columns: Object.fromEntries(sided.filter((each) => changed.includes(each) || sideOf(each) === "base").map((each) => [each.name, sideOf(each)])),
    value: Object.fromEntries(own.map((each) => [each.name, parsed(each, choices[each.name]?.text ?? "")])),
  };
}

/** Whether a column has numbers.
 * @param {Column} column */
export function isNumeric({ base, left, right }) {
  const given = [left, right, base].filter((each) => each !== undefined && each !== null);
  return given.length > 0 && given.every((each) => typeof each === "number" || each.$int !== undefined);
}

/** @param {Column} column @param {string} text */
function parsed(column, text) {
  if (!isNumeric(column)) return text;
  const number = text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(number)) throw new Error(`${column.name} must be a number, got ${JSON.stringify(text)}.`);
  return Number.isInteger(number) && !Number.isSafeInteger(number) ? { $int: text.trim() } : number;
}
