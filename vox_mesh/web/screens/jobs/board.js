/** Jobs by state, as cards in columns. */
import { html } from "../../vendor.js";
import { get } from "../../app/api.js";
import { Link, route, to } from "../../app/router.js";
import { useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Loaded } from "../../parts/page.js";
import { Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { noteOf, shownState, STATES } from "./model.js";

const SHOWN = 24;

/** @typedef {import("./model.js").Row} Row */

/** @param {{filter: import("./model.js").Filter, states: Record<string, number> | undefined}} props */
export function Board({ filter, states }) {
  const shown = filter.state ? [filter.state] : STATES.filter((state) => state !== "claimed" || states?.claimed !== 0);
  return html`<div class="jobs-board" tabindex="0" role="group" aria-label="Jobs by state">
    ${shown.map((state) => html`<${Column} state=${state} filter=${filter} count=${states?.[state]} key=${state} />`)}
  </div>`;
}

/** @param {{state: string, filter: import("./model.js").Filter, count: number | undefined}} props */
function Column({ state, filter, count }) {
  const query = { ...filter, state, limit: SHOWN };
  const jobs = useLive(async (signal) => get("/v1/jobs/rows", query, { signal }), ["job"], JSON.stringify(query));
  return html`<section class="jobs-column" aria-label=${state}>
    <h2><${Badge} state=${state} />${count !== undefined && html`<span class="number quiet">${count.toLocaleString("en")}</span>`}</h2>
    <${Loaded} of=${jobs}>${(/** @type {{items: Row[], next: string | null}} */ { items, next }) => html`
      ${items.length === 0 && html`<p class="quiet small">None.</p>`}
      <ul>${items.map((item) => html`<${Card} row=${item} key=${item.job_id} />`)}</ul>
      ${next !== null && items.length > 0 && html`<${Link} class="small" href=${to("jobs", "", { ...Object.fromEntries(route.value.query), state, view: "" })}>See all in the table<//>`}`}<//>
  </section>`;
}

/** @param {{row: Row}} props */
function Card({ row }) {
  const state = shownState(row);
  const note = noteOf(row);
  return html`<li class="jobs-card">
    <${Link} href=${to("job", row.job_id)}><${Line} text=${row.kind} max=${60} /><//>
    ${note && html`<span class="quiet small"><${Line} text=${note} max=${120} /></span>`}
    <span class="row small quiet">
      ${state !== row.state && html`<${Badge} state=${state} />`}
      ${(row.agent ?? row.claimer) && html`<${Line} text=${row.agent ?? row.claimer} max=${40} />`}<${Time} ms=${row.ended_ms ?? row.started_ms ?? row.created_ms} />
    </span>
  </li>`;
}
