/** Long lists, read page by page as they are scrolled, and renewed from the top when something changes. */
import { useEffect, useRef, useSignal } from "../vendor.js";
import { get } from "../app/api.js";
import { listen, repeater } from "../app/state.js";

const SIZE = 100;

/**
 * Read the first page now and after each event of the topics, and further ones when `more` is called. Rows that
 * were read before keep their place; a row is never there twice.
 *
 * @template T
 * @param {string} path @param {Record<string, any>} query @param {string[]} topics @param {(row: T) => string} keyOf
 * @returns {{value: T[] | undefined, problem: unknown, more: (() => void) | null, reload: () => void, replace: (row: T) => void}}
 * `replace`: shows the current state of a row, wherever it stands.
 */
export function usePages(path, query, topics, keyOf) {
  const key = path + JSON.stringify(query);
  const found = useSignal(/** @type {{key: string, rows: T[] | undefined, next: string | null, problem: unknown}} */ ({ key, rows: undefined, next: null, problem: null }));
  const reading = useRef({ ask: () => {} });
  const isBusy = useRef(false);
  useEffect(() => {
    const ending = new AbortController();
    const renew = repeater(async () => {
      try {
        const before = found.value.key === key ? found.value : { rows: undefined, next: null };
        const page = await get(path, { ...query, limit: SIZE }, { signal: ending.signal });
        const rows = page.items;
        const kept = page.next === null ? [] : beyond(before.rows ?? [], new Set(rows.map(keyOf)), keyOf);
        found.value = { key, rows: [...rows, ...kept], next: kept.length > 0 ? before.next : page.next, problem: null };
      } catch (problem) {
        if (!ending.signal.aborted) found.value = { ...found.value, key, problem };
      }
    });
    reading.current = renew;
    renew.ask();
    const stop = listen(topics, renew.ask);
    return () => {
      ending.abort();
      renew.end();
      stop();
    };
  }, [key, topics.join()]);
  const now = found.value.key === key ? found.value : { rows: undefined, next: null, problem: null };
  const more = async () => {
    if (isBusy.current || !now.next) return;
    isBusy.current = true;
    try {
      const page = await get(path, { ...query, limit: SIZE, cursor: now.next });
      const rows = found.value.rows ?? [];
      const known = new Set(rows.map(keyOf));
      const added = page.items.filter((/** @type {T} */ row) => !known.has(keyOf(row)));
      if (found.value.key === key) found.value = { ...found.value, rows: [...rows, ...added], next: page.next };
    } catch (problem) {
      found.value = { ...found.value, problem };
    } finally {
      isBusy.current = false;
    }
  };
  const replace = (/** @type {T} */ row) => {
    const { rows } = found.value;
    const at = rows?.findIndex((each) => keyOf(each) === keyOf(row)) ?? -1;
    if (rows && at >= 0) found.value = { ...found.value, rows: rows.with(at, row) };
  };
  return { value: now.rows, problem: now.problem, more: now.next ? more : null, reload: () => reading.current.ask(), replace };
}

/** Return the rows after the last one that is in the first page, too. Without a row in common, it can't be known which are.
 * @template T
 * @param {T[]} rows @param {Set<string>} fresh @param {(row: T) => string} keyOf */
function beyond(rows, fresh, keyOf) {
  const last = rows.findLastIndex((row) => fresh.has(keyOf(row)));
  return last < 0 ? [] : rows.slice(last + 1);
}
