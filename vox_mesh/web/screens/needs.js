/** What needs a person, most urgent first, each with its action in place: the first screen. */
import { html, signal, useEffect, useRef } from "../vendor.js";
import { get, send } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { mesh, useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Act } from "../parts/button.js";
import { ask, isAsking } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";
import { Empty, Loaded, Page } from "../parts/page.js";
import { Line, Text } from "../parts/text.js";
import { Time } from "../parts/time.js";
import { Actions, Body } from "./needs/actions.js";
import { BeatLine } from "./needs/beat.js";
import { keyOf, kindOf } from "./needs/kinds.js";

/** @typedef {import("./needs/kinds.js").Item} Item */
/** @typedef {{items: Item[], counts: Record<string, number>}} Attention */

/** Items that this person has just settled: hidden until the node lists what is left.
 * @type {import("../vendor.js").Signal<{list: unknown, keys: Set<string>}>} */
const settled = signal({ list: null, keys: new Set() });

/** How urgent it is, by shape and text.
 * @type {Record<string, {text: string, shape: string, tone: import("../parts/badge.js").Tone}>} */
const URGENCY = { now: { text: "urgent", shape: "diamond", tone: "bad" }, soon: { text: "soon", shape: "clock", tone: "warn" }, later: { text: "can wait", shape: "ring", tone: "" } };

export default function Needs() {
  const first = useLive(async () => mesh.attention?.peek() ?? get("/v1/attention"), []);
  const list = mesh.attention?.value ?? first.value;
  return html`<${Page} title="Needs you" note=${list && html`<span role="status">${summary(list.counts)}</span>`}>
    <${BeatLine} />
    <${Loaded} of=${{ value: list, problem: list ? null : first.problem }}>${(/** @type {Attention} */ found) => html`<${Groups} list=${found} />`}<//>
  <//>`;
}

/** @param {Record<string, number>} counts */
function summary(counts) {
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  return total === 0 ? "" : total === 1 ? "1 thing waits" : `${total.toLocaleString("en")} things wait`;
}

/** @param {{list: Attention}} props */
function Groups({ list }) {
  const only = route.value.query.get("kind") ?? "";
  const hidden = settled.value.list === list ? settled.value.keys : new Set();
  const open = list.items.filter((each) => !hidden.has(keyOf(each)));
  const kinds = [...new Set(open.map((each) => each.kind))];
  const shown = only ? kinds.filter((each) => each === only) : kinds;
  const done = (/** @type {Item} */ item) => {
    const now = mesh.attention?.peek() ?? list;
    const before = settled.peek().list === now ? settled.peek().keys : [];
    settled.value = { list: now, keys: new Set([...before, keyOf(item)]) };
  };
  const place = useFocusKept(open);
  return html`${kinds.length > 1 && html`<${Filter} kinds=${kinds} counts=${list.counts} only=${only} />`}
    <div class="needs-groups" ref=${place}>
      ${shown.length === 0 && html`<${Nothing} only=${only} />`}
      ${shown.map((kind) => html`<${Group} key=${kind} kind=${kind} count=${Math.max(0, (list.counts[kind] ?? 0) - hiddenOf(hidden, kind))} items=${open.filter((each) => each.kind === kind)} done=${done} />`)}
    </div>`;
}

/** @param {Set<string>} hidden @param {string} kind */
function hiddenOf(hidden, kind) {
  return [...hidden].filter((key) => key.startsWith(`${kind} `)).length;
}

/** @param {{only: string}} props */
function Nothing({ only }) {
  if (only) return html`<div class="panel"><${Empty} title=${`Nothing here: ${kindOf(only).title.toLowerCase()}`}><${Link} href=${to("needs")}>See everything that needs you<//><//></div>`;
  return html`<div class="panel"><${Empty} title="Nothing needs you">
    All agents can go on by themselves. This page shows it at once when one needs a decision.
    <div class="actions needs-next"><${Link} class="button" href=${to("fleet")}>See the fleet<//><${Link} class="button" href=${to("jobs")}>See the jobs<//></div>
  <//></div>`;
}

/** @param {{kinds: string[], counts: Record<string, number>, only: string}} props */
function Filter({ kinds, counts, only }) {
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const choice = (/** @type {string} */ kind, /** @type {string} */ text, /** @type {number} */ count) =>
    html`<${Link} key=${kind} class="needs-choice" href=${to("needs", "", { kind })} aria-current=${kind === only ? "true" : undefined}>${text} <span class="number">${count.toLocaleString("en")}</span><//>`;
  return html`<nav class="needs-filter" aria-label="Kinds">${choice("", "All", total)}${kinds.map((kind) => choice(kind, kindOf(kind).title, counts[kind] ?? 0))}</nav>`;
}

/** @param {{kind: string, count: number, items: Item[], done: (item: Item) => void}} props */
function Group({ kind, count, items, done }) {
  const { title, icon, text, all } = kindOf(kind);
  const left = count - items.length;
  return html`<section class="panel needs-group" aria-labelledby=${`needs-${kind}`}>
    <header>
      <${Icon} name=${icon} /><h2 id=${`needs-${kind}`}>${title}</h2><span class="count" aria-label=${`${count} in all`}>${count.toLocaleString("en")}</span>
      <span class="quiet small">${text}</span>
      <div class="actions">${kind === "failed_job" && items.length > 1 && html`<${RetryAll} items=${items} done=${done} />`}${all && html`<${Link} class="small" href=${all}>See all<//>`}</div>
    </header>
    <ul>${items.map((item) => html`<${Entry} key=${item.id} item=${item} done=${() => done(item)} />`)}</ul>
    ${left > 0 && html`<p class="small quiet">and ${left.toLocaleString("en")} more</p>`}
  </section>`;
}

/** @param {{items: Item[], done: (item: Item) => void}} props */
function RetryAll({ items, done }) {
  const run = () =>
    ask({
      title: `Retry ${items.length} failed jobs?`,
      text: "Each is scheduled again as a new job.",
      action: `Retry ${items.length}`,
      run: async () => {
        await send("POST", "/v1/jobs/retry", { jobs: items.map((each) => each.id) });
        items.forEach(done);
      },
    });
  return html`<${Act} needs="retry_jobs" class="small" run=${run} done="Scheduled again as new jobs.">Retry all ${items.length}<//>`;
}

/** @param {{item: Item, done: () => void}} props */
function Entry({ item, done }) {
  const { hrefOf } = kindOf(item.kind);
  const title = html`<${Line} text=${item.title} max=${200} />`;
  const urgency = URGENCY[item.urgency] ?? URGENCY.later;
  return html`<li class=${`needs-item ${item.urgency}`} data-key=${keyOf(item)} tabindex="-1">
    <div class="needs-text">
      <div class="needs-title">${hrefOf ? html`<${Link} href=${hrefOf(item)}>${title}<//>` : title}</div>
      ${item.detail && html`<div class="needs-detail"><${Text} text=${item.detail} max=${300} /></div>`}
      <${Body} item=${item} done=${done} />
    </div>
    <div class="needs-when"><${Badge} state=${item.urgency} ...${urgency} /><${Time} ms=${item.since_ms} /></div>
    <div class="actions needs-actions"><${Actions} item=${item} done=${done} /></div>
  </li>`;
}

/** Keep the place of the keyboard when the thing it was at is settled: the next one gets it.
 * @param {Item[]} items */
function useFocusKept(items) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const at = useRef({ key: "", index: -1 });
  useEffect(() => {
    const keep = (/** @type {FocusEvent} */ event) => {
      const entry = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-key]"));
      const entries = [...(place.current?.querySelectorAll("[data-key]") ?? [])];
      at.current = entry ? { key: entry.dataset.key ?? "", index: entries.indexOf(entry) } : { key: "", index: -1 };
    };
    place.current?.addEventListener("focusin", keep);
    return () => place.current?.removeEventListener("focusin", keep);
  }, []);
  useEffect(() => {
    // The node may list what is left before it answers: then the dialog of what was settled is still open.
    const frame = requestAnimationFrame(() => moveOn(place.current, at.current));
    return () => cancelAnimationFrame(frame);
  }, [items.map(keyOf).join(), isAsking.value]);
  return place;
}

/** @param {HTMLElement | null} place @param {{key: string, index: number}} at */
function moveOn(place, { key, index }) {
  if (index < 0 || document.activeElement !== document.body) return;
  const entries = [.../** @type {NodeListOf<HTMLElement>} */ (place?.querySelectorAll("[data-key]") ?? [])];
  if (entries.some((each) => each.dataset.key === key)) return;
  const next = entries[Math.min(index, entries.length - 1)] ?? document.getElementById("main");
  next?.focus({ preventScroll: true });
}
