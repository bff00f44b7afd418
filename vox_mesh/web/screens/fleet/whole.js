/** Lists of which the stream has the newest part: the rest is read now and then. */
import { useEffect, useMemo } from "../../vendor.js";
import { get } from "../../app/api.js";
import { mesh, useLive } from "../../app/state.js";

const MAX_PAGES = 10;
const CUT_MS = 5_000;
const WHOLE_MS = 30_000;

/**
 * Return a whole list: what the stream has, and what is read of the rest. When a row was last seen is no event, so
 * the list is also read, less often, if the stream has all of it.
 *
 * @template {{last_seen_ms: number | null}} T
 * @param {string} part @param {number} max @param {string} path @param {Record<string, any>} query @param {(row: T) => string} keyOf
 * @returns {{value: T[] | undefined, problem: unknown}}
 */
export function useWhole(part, max, path, query, keyOf) {
  const streamed = /** @type {T[] | undefined} */ (mesh[part]?.value);
  const isCut = streamed !== undefined && streamed.length >= max;
  const read = useLive(async (signal) => readAll(path, query, signal), [], path);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || read.reload(), isCut ? CUT_MS : WHOLE_MS);
    return () => clearInterval(timer);
  }, [isCut]);
  const value = useMemo(() => {
    if (!streamed) return streamed;
    const rows = new Map(streamed.map((row) => [keyOf(row), row]));
    for (const row of /** @type {T[]} */ (read.value ?? [])) {
      const known = rows.get(keyOf(row));
      const isNewer = known ? (row.last_seen_ms ?? 0) > (known.last_seen_ms ?? 0) : isCut;
      if (isNewer) rows.set(keyOf(row), row);
    }
    return [...rows.values()];
  }, [streamed, isCut, read.value]);
  return { value, problem: read.problem };
}

/** Read all pages of a list, up to a number of them.
 * @param {string} path @param {Record<string, any>} query @param {AbortSignal} signal @returns {Promise<any[]>} */
export async function readAll(path, query, signal) {
  const rows = [];
  let cursor = null;
  for (let count = 0; count < MAX_PAGES; count += 1) {
    const page = await get(path, { ...query, cursor }, { signal });
    rows.push(...page.items);
    cursor = page.next;
    if (cursor === null) break;
  }
  return rows;
}
