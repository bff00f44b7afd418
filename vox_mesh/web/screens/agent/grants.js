/** What an agent may do, by which grant, and how much of its limits it has used. */
import { html } from "../../vendor.js";
import { Id, Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";

/** @typedef {{grant_id: string | null, agent: string, capabilities: string[], valid_until: string | null, delegations: number}} Grant */

/** @param {{agent: {granted: Grant[], grant_use: {allows: string, limit: string, used: number, most: number}[]}}} props */
export function Grants({ agent: { granted, grant_use: uses } }) {
  return html`<section class="panel stack">
    <h2>Grants</h2>
    ${granted.length === 0 && html`<p class="quiet">It may do nothing: <code>vox-mesh grant issue</code> gives it rights.</p>`}
    ${granted.map((each, at) => html`<${One} grant=${each} key=${each.grant_id ?? at} />`)}
    ${uses.length > 0 && html`<h3 class="quiet">Used of limits</h3>`}
    <ul class="agent-list">${uses.map((use, at) => html`<li key=${at}><span><${Line} text=${use.allows} max=${80} /> <span class="quiet">${use.limit}</span></span><span class="number">${use.used} of ${use.most}</span></li>`)}</ul>
  </section>`;
}

/** @param {{grant: Grant}} props */
function One({ grant }) {
  return html`<div class="stack">
    <div class="agent-caps">${grant.capabilities.map((each) => html`<code key=${each}><${Line} text=${each} max=${100} /></code>`)}</div>
    <div class="row quiet small">
      ${grant.grant_id ? html`<${Id} id=${grant.grant_id} label="id of the grant" />` : "as every agent that is not admitted"}
      ${grant.valid_until && html`<span>until <${Time} ms=${Date.parse(grant.valid_until)} /></span>`}
    </div>
  </div>`;
}
