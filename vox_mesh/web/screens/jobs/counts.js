/** How many jobs there are, by kind and state. */
import { get } from "../../app/api.js";
import { STATES } from "./model.js";

const SIZE = 500;
const MAX_PAGES = 8;

/** @typedef {{kind: string} & Record<string, any>} CountOfKind */

/** Return the counts of the kinds that match.
 * @param {string} [kind] @returns {Promise<CountOfKind[]>} */
export async function readCounts(kind) {
  const found = [];
  let cursor;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const { items, next } = await get("/v1/jobs/counts", { kind, limit: SIZE, cursor });
    found.push(...items);
    if (next === null) break;
    cursor = next;
  }
  return found;
}

/** Return the number of jobs in each state.
 * @param {CountOfKind[]} [counts] @returns {Record<string, number> | undefined} */
export function countsOf(counts) {
  if (!counts) return undefined;
  return Object.fromEntries(STATES.map((state) => [state, counts.reduce((sum, each) => sum + (each[state] ?? 0), 0)]));
}

/** Return the number of jobs in some states.
 * @param {Record<string, number>} states @param {string[]} names */
export function sumOf(states, names) {
  return names.reduce((sum, each) => sum + (states[each] ?? 0), 0);
}

/** Return a number as people write it, with its noun.
 * @param {number} count @param {string} [noun] */
export function counted(count, noun = "job") {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
