/** The rows of the table: read page by page, and renewed where they are seen. */
import { useEffect, useMemo, useRef } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { listen, repeater } from "../../app/state.js";
import { usePages } from "../../parts/pages.js";
import { endsOthers, isOpen, keyOf, namedIn, renewed } from "./model.js";

const FIRST_PAGE = 100;
const AT_ONCE = 4;
const MAX_RENEWED = 48;

/** @typedef {import("./model.js").Row} Row */

/** Read jobs. The first page is read again after each event; further rows are, one by one, when an event has named them and they are seen.
 * @param {import("./model.js").Filter} filter */
export function useRows(filter) {
  const pages = usePages("/v1/jobs/rows", filter, ["job"], (/** @type {Row} */ row) => row.job_id);
  const stale = useRef(/** @type {Set<string>} */ (new Set()));
  const seen = useRef(/** @type {Row[]} */ ([]));
  const rows = useRef(pages);
  rows.current = pages;
  const places = useMemo(() => new Map((pages.value ?? []).map((row, place) => [row.job_id, place])), [pages.value]);
  const known = useRef(places);
  known.current = places;
  const renewal = useMemo(() => repeater(() => renew(seen.current, stale.current, known.current, rows.current.replace)), []);
  useEffect(() => {
    const stop = listen(["job"], (name, entry) => {
      for (const id of name === "reset" ? known.current.keys() : touched(entry, rows.current.value ?? [])) {
        if ((known.current.get(id) ?? 0) >= FIRST_PAGE) stale.current.add(id);
      }
      if (stale.current.size > 0) renewal.ask();
    });
    return () => {
      stop();
      renewal.end();
    };
  }, []);
  const shows = (/** @type {Row[]} */ shown) => {
    seen.current = shown;
    if (stale.current.size > 0) renewal.ask();
  };
  return { ...pages, shows };
}

/** Return the ids of jobs that an entry may have changed.
 * @param {any} entry @param {Row[]} rows */
function touched(entry, rows) {
  const named = namedIn(entry);
  if (!endsOthers(entry)) return named;
  return [...named, ...rows.filter((row) => isOpen(row) && row.waits > 0).map(keyOf)];
}

/** @param {Row[]} seen @param {Set<string>} stale @param {Map<string, number>} known @param {(row: Row) => void} replace */
async function renew(seen, stale, known, replace) {
  for (const id of stale) if (!known.has(id)) stale.delete(id);
  const wanted = seen.filter((row) => stale.has(row.job_id)).slice(0, MAX_RENEWED);
  for (let start = 0; start < wanted.length; start += AT_ONCE) {
    await Promise.all(wanted.slice(start, start + AT_ONCE).map(async (row) => {
      stale.delete(row.job_id);
      try {
        replace(renewed(row, await get(`/v1/jobs/${segment(row.job_id)}`)));
      } catch {
        // The row stays as it was: the job is pruned, or the node does not answer, which the frame says.
      }
    }));
  }
}
