/** Locks: who holds what and for how long, who waits in which order, and breaking one with a reason. */
import { html, useEffect, useRef } from "../vendor.js";
import { get } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Act } from "../parts/button.js";
import { NoFilters, TextFilter } from "../parts/filter.js";
import { Empty, Loaded, Page } from "../parts/page.js";
import { Table, TwoLines } from "../parts/table.js";
import { Id, Line } from "../parts/text.js";
import { Since, Time } from "../parts/time.js";
import { breakLock } from "./locks/break.js";

const FILTERS = ["key", "agent"];
const PAGE = 500;
const RENEW_MS = 15_000;

/**
 * @typedef {{lock_key: string, fence_token: number | null, holder_node: string, holder_agent: string, is_shared: boolean,
 *   acquired_at: string, session: string | null, session_pid: number | null, heldMs: number, endsMs: number}} Hold
 * @typedef {{lock_key: string, holder_node: string, holder_agent: string, is_shared: boolean, place: number,
 *   blocked_by: string[], waitsMs: number}} Waiter
 * @typedef {{holds: Hold[], waiters: Waiter[], isCut: boolean}} Found
 */

export default function Locks() {
  const query = Object.fromEntries(FILTERS.map((name) => [name, route.value.query.get(name) ?? ""]));
  const pages = useRef(1);
  const found = useLive((signal) => read(query, pages.current, signal), ["locks"], JSON.stringify(query));
  useEffect(() => {
    // A renewed lease is no event.
    const timer = setInterval(() => document.hidden || found.reload(), RENEW_MS);
    return () => clearInterval(timer);
  }, []);
  const more = () => {
    pages.current += 1;
    found.reload();
  };
  const { holds = [], waiters = [] } = found.value ?? {};
  const note = found.value && `${holds.length}${found.value.isCut ? "+" : ""} held, ${waiters.length} waiting`;
  return html`<${Page} title="Locks" note=${note}>
    <div class="filters" role="search">
      <${TextFilter} name="key" label="Blocks" placeholder="file:src/app.py" />
      <${TextFilter} name="agent" label="Held by" placeholder="agent" />
      <${NoFilters} names=${FILTERS} />
    </div>
    <${Loaded} of=${found}>
      ${(/** @type {Found} */ { isCut }) =>
        holds.length === 0
          ? html`<${Nothing} isFiltered=${isFiltered(query)} />`
          : html`<${Table}
              label="Held locks"
              rows=${holds}
              columns=${columnsOf(waiters)}
              keyOf=${(/** @type {Hold} */ hold) => `${hold.lock_key} ${hold.acquired_at} ${hold.holder_agent}`}
              more=${isCut ? more : null}
            />`}
    <//>
    ${waiters.length > 0 && html`<${Queue} waiters=${waiters} />`}
  <//>`;
}

/** @param {Record<string, string>} query @param {number} pages @param {AbortSignal} signal @returns {Promise<Found>} */
async function read(query, pages, signal) {
  const [{ holds, isCut }, waiting] = await Promise.all([
    readHolds(query, pages, signal),
    get("/v1/locks/waiters", { limit: PAGE }, { signal }),
  ]);
  const now = Date.now();
  const shown = new Set(holds.map((each) => each.lock_key));
  const waiters = waiting
    .map((/** @type {any} */ each) => ({ ...each, waitsMs: now - each.age_ms }))
    .filter((/** @type {Waiter} */ each) => !isFiltered(query) || each.blocked_by.some((key) => shown.has(key)));
  return { holds, waiters, isCut };
}

/** Read as many pages as are shown, so that no row is older than another.
 * @param {Record<string, string>} query @param {number} pages @param {AbortSignal} signal */
async function readHolds(query, pages, signal) {
  /** @type {Hold[]} */
  const holds = [];
  let cursor = null;
  for (let count = 0; count < pages && (count === 0 || cursor); count += 1) {
    const page = await get("/v1/locks", { ...query, limit: PAGE, cursor }, { signal });
    const now = Date.now();
    for (const each of page.items) holds.push({ ...each, heldMs: now - each.age_ms, endsMs: now + each.left_ms });
    cursor = page.next;
  }
  return { holds, isCut: cursor !== null };
}

/** @param {Record<string, string>} query */
function isFiltered(query) {
  return FILTERS.some((name) => query[name]);
}

/** @param {Waiter[]} waiters @returns {import("../parts/table.js").Column<Hold>[]} */
function columnsOf(waiters) {
  return [
    { name: "key", label: "Key", width: "minmax(0, 2.2fr)", cell: (hold) => html`<${Key} of=${hold} />`, narrow: (hold) => html`<${TwoLines} top=${html`<${Key} of=${hold} />`} below=${html`<${Holder} of=${hold} /><${Since} ms=${hold.heldMs} />`} />` },
    { name: "holder", label: "Holder", width: "minmax(0, 1.4fr)", isWide: true, cell: (hold) => html`<${Holder} of=${hold} />` },
    { name: "held", label: "Held for", width: "80px", isWide: true, cell: (hold) => html`<${Since} ms=${hold.heldMs} />` },
    { name: "left", label: "Lease ends", width: "96px", isWide: true, cell: (hold) => html`<span title=${keeperOf(hold)}><${Time} ms=${hold.endsMs} /></span>` },
    { name: "waiters", label: "Waiters", width: "minmax(0, 1.2fr)", isWide: true, cell: (hold) => html`<${Waiters} waiters=${waiters.filter((each) => each.blocked_by.includes(hold.lock_key))} />` },
    { name: "token", label: "Token", width: "112px", isWide: true, cell: (hold) => html`<${Token} of=${hold} />` },
    { name: "act", label: "Actions", isLabelUnseen: true, width: "76px", isRight: true, cell: (hold) => html`<${Act} class="small" needs="break_lock" label=${`Break the lock on ${hold.lock_key.slice(0, 100)}`} run=${() => breakLock(hold)}>Break…<//>` },
  ];
}

/** @param {{of: Hold | Waiter}} props */
function Key({ of: { lock_key: key, is_shared: isShared } }) {
  return html`<span class="locks-key"
    ><${Id} id=${key} label="key"><${Line} text=${key} /><//>${isShared && html`<${Badge} state="shared" shape="half" />`}${
      isPattern(key) && html`<${Badge} state="pattern" shape="diamond" />`
    }</span
  >`;
}

/** Whether a key covers many files.
 * @param {string} key */
function isPattern(key) {
  return key.startsWith("file:") && /[*?[]/.test(key);
}

/** @param {{of: Hold | Waiter}} props */
function Holder({ of: { holder_agent: agent, holder_node: node } }) {
  return html`<${Link} href=${to("agent", agent)}><${Line} text=${agent} max=${60} /><//> <span class="quiet locks-node">at <${Line} text=${node} max=${40} /></span>`;
}

/** What renews the lease.
 * @param {Hold} hold */
function keeperOf({ session, session_pid: pid }) {
  if (session === "heartbeats") return "Renewed with each heartbeat of its agent";
  return session === "process" ? `Renewed while process ${pid} runs` : "Renewed by its holder";
}

/** @param {{waiters: Waiter[]}} props */
function Waiters({ waiters }) {
  if (waiters.length === 0) return html`<span class="quiet">–</span>`;
  const [first] = waiters;
  return html`${first && html`<${Link} href=${to("agent", first.holder_agent)}><${Line} text=${first.holder_agent} max=${30} /><//>`}${waiters.length > 1 && html` <span class="quiet" title=${waiters.slice(1, 9).map((each) => each.holder_agent.slice(0, 30)).join(", ")}>+${waiters.length - 1}</span>`}`;
}

/** @param {{of: Hold}} props */
function Token({ of: { fence_token: token } }) {
  if (token === null) return html`<span class="quiet" title="A read-only session does not see it">hidden</span>`;
  const text = String(token);
  return html`<${Id} id=${text} label="token"><span title=${`Fencing token ${text}`}>…${text.slice(-6)}</span><//>`;
}

/** Those who wait, in the order in which they are served.
 * @param {{waiters: Waiter[]}} props */
function Queue({ waiters }) {
  /** @type {import("../parts/table.js").Column<Waiter>[]} */
  const columns = [
    { name: "place", label: "Place", width: "52px", isRight: true, cell: (waiter) => waiter.place },
    { name: "key", label: "Waits for", width: "minmax(0, 2fr)", cell: (waiter) => html`<${Key} of=${waiter} />`, narrow: (waiter) => html`<${TwoLines} top=${html`<${Key} of=${waiter} />`} below=${html`<${Holder} of=${waiter} />`} />` },
    { name: "agent", label: "Agent", width: "minmax(0, 1.4fr)", isWide: true, cell: (waiter) => html`<${Holder} of=${waiter} />` },
    { name: "since", label: "For", width: "80px", cell: (waiter) => html`<${Since} ms=${waiter.waitsMs} />` },
    { name: "by", label: "Blocked by", width: "minmax(0, 2fr)", isWide: true, cell: (waiter) => html`<${Blocking} keys=${waiter.blocked_by} />` },
  ];
  const keyOf = (/** @type {Waiter} */ each) => `${each.lock_key} ${each.place} ${each.holder_agent}`;
  return html`<section class="stack" aria-label="Waiting">
    <h2>Waiting</h2>
    <${Table} label="Waiters" rows=${waiters} columns=${columns} keyOf=${keyOf} height=${440} />
  </section>`;
}

/** @param {{keys: string[]}} props */
function Blocking({ keys }) {
  const [first, ...others] = keys;
  if (first === undefined) return html`<span class="quiet">those before it</span>`;
  return html`<${Link} href=${to("locks", "", { key: first })}><code><${Line} text=${first} max=${100} /></code><//>${others.length > 0 && ` +${others.length}`}`;
}

/** @param {{isFiltered: boolean}} props */
function Nothing({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No lock matches" icon="locks">What you look for is free, or held by another agent.<//>`;
  return html`<${Empty} title="Nothing is locked" icon="locks">An agent holds a file while it works on it: <code>vox-mesh lock run file:src/app.py -- COMMAND</code><//>`;
}
