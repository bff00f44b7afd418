/** One agent: what it does now, what it may do, what it holds, has spent and has done last. */
import { html } from "../vendor.js";
import { Problem, get, segment } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { may } from "../app/session.js";
import { useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Empty, Facts, Loaded, Page } from "../parts/page.js";
import { Id, Line } from "../parts/text.js";
import { Time } from "../parts/time.js";
import { Grants } from "./agent/grants.js";
import { Spending } from "./agent/spending.js";
import { AgentState, WorksOn } from "./fleet/agents.js";

const TOPICS = ["agents", "locks", "messages", "job", "op"];

/**
 * @typedef {{op_id: string, kind: string, hlc: string, accepted: boolean, reason: string | null}} Action
 * @typedef {{job_id: string, kind: string, state: string}} AgentJob
 * @typedef {import("./fleet/agents.js").Agent & {first_seen_ms: number | null, admitted: boolean, public_key: string | null,
 *   granted: import("./agent/grants.js").Grant[], grant_use: any[], budget: any[], spend: any[],
 *   held_locks: {lock_key: string, expires_at: string}[], taken: AgentJob[], scheduled: AgentJob[],
 *   unacknowledged: number, awaiting_acknowledgement: number, last_actions: Action[]}} Details
 */

export default function Agent() {
  const name = route.value.id;
  const found = useLive((signal) => get(`/v1/agents/${segment(name)}`, {}, { signal }), TOPICS, name);
  const write = may("send_message") && html`<${Link} class="button" href=${to("messages", "", { write: "1", to: name })}>Write to it<//>`;
  const state = found.value && html`<${AgentState} of=${found.value} />`;
  return html`<${Page} title=${name.slice(0, 100) || "Agent"} note=${state} actions=${html`<${Link} class="button" href=${to("log", "", { agent: name })}>Log<//>${write}`}>
    ${isUnknown(found.problem)
      ? html`<div class="panel"><${Empty} title="This agent has not acted within a month" icon="fleet"><${Link} href=${to("fleet")}>See the fleet<//><//></div>`
      : html`<${Loaded} of=${found}>${(/** @type {Details} */ agent) => html`<${Panels} agent=${agent} />`}<//>`}
  <//>`;
}

/** @param {unknown} problem */
function isUnknown(problem) {
  return problem instanceof Problem && problem.status === 404;
}

/** @param {{agent: Details}} props */
function Panels({ agent }) {
  return html`<div class="columns">
    <${Now} agent=${agent} /><${Spending} agent=${agent} /><${Jobs} agent=${agent} /><${Locks} agent=${agent} /><${Grants} agent=${agent} /><${LastActions} actions=${agent.last_actions} />
  </div>`;
}

/** @param {{agent: Details}} props */
function Now({ agent }) {
  const { agent_id: name, node_id: node } = agent;
  const mail = (/** @type {number} */ count, /** @type {string} */ state, /** @type {Record<string, string>} */ query) =>
    html`<${Link} href=${to("messages", "", query)}>${count.toLocaleString("en")} ${state}<//>`;
  return html`<section class="panel">
    <h2>Now</h2>
    <${Facts} of=${[
      ["Works on", html`<${WorksOn} of=${agent} />`],
      ["Node", node && html`<${Link} href=${to("fleet", "", { node })}><${Line} text=${node} max=${60} /><//>`],
      ["Last seen", html`<${Time} ms=${agent.last_seen_ms} />${agent.last_action && html` <span class="quiet">(<${Line} text=${agent.last_action} max=${40} />)</span>`}`],
      ["First seen", html`<${Time} ms=${agent.first_seen_ms} />`],
      ["Inbox", mail(agent.unread, "unread", { for: name, state: "stored" })],
      ["Received", mail(agent.unacknowledged, "not acknowledged", { for: name, state: "delivered" })],
      ["Sent", mail(agent.awaiting_acknowledgement, "not acknowledged", { from: name })],
      ["Identity", agent.public_key ? html`<${Id} id=${agent.public_key} length=${22} label="public key" />` : html`<span class="quiet">not admitted</span>`],
    ]} />
  </section>`;
}

/** @param {{agent: Details}} props */
function Jobs({ agent }) {
  const groups = /** @type {[string, AgentJob[]][]} */ ([["Taken", agent.taken], ["Scheduled", agent.scheduled]]);
  const isEmpty = groups.every(([, jobs]) => jobs.length === 0);
  return html`<section class="panel stack">
    <h2>Jobs</h2>
    ${isEmpty && html`<p class="quiet">It has neither taken nor scheduled jobs lately.</p>`}
    ${groups.map(
      ([title, jobs]) =>
        jobs.length > 0 &&
        html`<h3 class="quiet">${title}</h3>
          <ul class="agent-list">
            ${jobs.map((job) => html`<li key=${job.job_id}><${Link} href=${to("job", job.job_id)}><${Line} text=${job.kind} max=${60} /><//><${Badge} state=${job.state} /></li>`)}
          </ul>`,
    )}
  </section>`;
}

/** @param {{agent: Details}} props */
function Locks({ agent }) {
  return html`<section class="panel stack">
    <h2>Locks</h2>
    ${agent.held_locks.length === 0 && html`<p class="quiet">It holds none.</p>`}
    <ul class="agent-list">
      ${agent.held_locks.map(
        (lock) => html`<li key=${lock.lock_key}>
          <${Link} href=${to("locks", "", { key: lock.lock_key })}><code><${Line} text=${lock.lock_key} /></code><//>
          <span class="quiet">ends <${Time} ms=${Date.parse(lock.expires_at)} /></span>
        </li>`,
      )}
    </ul>
  </section>`;
}

/** @param {{actions: Action[]}} props */
function LastActions({ actions }) {
  return html`<section class="panel stack">
    <h2>Last actions</h2>
    ${actions.length === 0 && html`<p class="quiet">It has written nothing to the log lately.</p>`}
    <ul class="agent-list">
      ${actions.map(
        (each) => html`<li key=${each.op_id}>
          <span class="fleet-works"><${Link} href=${to("log", "", { op: each.op_id })}><${Line} text=${each.kind} max=${40} /><//>${!each.accepted && html`<${Badge} state="refused" /><${Line} text=${each.reason} max=${80} />`}</span>
          <span class="quiet"><${Time} ms=${Number(each.hlc.split("-")[0])} /></span>
        </li>`,
      )}
    </ul>
  </section>`;
}
