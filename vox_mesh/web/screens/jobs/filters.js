/** The filters of jobs: states with their counts, and the kind, node and agent. */
import { html } from "../../vendor.js";
import { Link, refine, route, to } from "../../app/router.js";
import { mesh } from "../../app/state.js";
import { toneOf } from "../../parts/badge.js";
import { TextFilter } from "../../parts/filter.js";
import { Icon } from "../../parts/icon.js";
import { Line } from "../../parts/text.js";
import { STATES } from "./model.js";

/** @param {{filter: import("./model.js").Filter, states: Record<string, number> | undefined, kinds: string[]}} props */
export function Filters({ filter, states, kinds }) {
  const isFiltered = Object.values(filter).some(Boolean);
  return html`<div class="jobs-filters">
    <${States} current=${filter.state ?? ""} states=${states} />
    <div class="filters">
      <${TextFilter} name="kind" label="Kind" choices=${kinds} placeholder="any, or code.*" />
      <${TextFilter} name="node" label="Node" choices=${namesOf(mesh.nodes?.value, "node_id")} placeholder="any" />
      <${TextFilter} name="agent" label="Agent" choices=${namesOf(mesh.agents?.value, "agent_id")} placeholder="any" />
      ${filter.run && html`<span class="small">Run <${Line} text=${filter.run} max=${30} /></span>`}
      ${isFiltered && html`<button class="plain small" onClick=${() => refine({ state: "", kind: "", node: "", agent: "", run: "" })}><${Icon} name="cross" />Clear</button>`}
    </div>
  </div>`;
}

/** Return the names of nodes or agents in the stream.
 * @param {any} part @param {string} field @returns {string[]} */
function namesOf(part, field) {
  return Array.isArray(part) ? part.map((each) => String(each[field])) : [];
}

/** Each state is a link to only that state; a second click shows all again.
 * @param {{current: string, states: Record<string, number> | undefined}} props */
function States({ current, states }) {
  const query = Object.fromEntries(route.value.query);
  const total = states && Object.values(states).reduce((sum, each) => sum + each, 0);
  return html`<nav class="jobs-states" aria-label="States">
    ${[["", "All", total], ...STATES.map((state) => [state, state, states?.[state]])].map(
      ([state, text, count]) => html`<${Link}
        key=${state}
        class=${`jobs-state ${toneOf(String(state))}`}
        href=${to("jobs", "", { ...query, state: state === current ? "" : state })}
        aria-current=${state === current ? "true" : undefined}
      >${text}${count !== undefined && html` <b class="number">${Number(count).toLocaleString("en")}</b>`}<//>`,
    )}
  </nav>`;
}
