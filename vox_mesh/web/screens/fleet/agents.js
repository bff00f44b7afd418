/** Agents: whether each is alive, what it works on and holds, and what it has spent. */
import { html } from "../../vendor.js";
import { get } from "../../app/api.js";
import { Link, go, to } from "../../app/router.js";
import { useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Empty, Loaded } from "../../parts/page.js";
import { Table, TwoLines } from "../../parts/table.js";
import { Line } from "../../parts/text.js";
import { Since, Time } from "../../parts/time.js";

/**
 * @typedef {{agent_id: string, state: string, node_id: string | null, last_seen_ms: number | null, last_action: string | null,
 *   lock_count: number, locks: string[], waits_for_count: number, waits_for: string[], job_count: number,
 *   jobs: {job_id: string, kind: string, started_ms: number | null}[], task_id: string | null, task_state: string | null, unread: number}} Agent
 */

/** @param {{found: {value: Agent[] | undefined, problem: unknown}, isFiltered: boolean}} props */
export function Agents({ found, isFiltered }) {
  const spent = useLive((signal) => get("/v1/budgets/tokens", { since: "24h" }, { signal }), ["report"]);
  return html`<section class="stack" aria-labelledby="fleet-agents">
    <h2 id="fleet-agents">Agents</h2>
    <${Loaded} of=${found}>
      ${(/** @type {Agent[]} */ rows) =>
        rows.length === 0
          ? html`<div class="panel"><${NoAgents} isFiltered=${isFiltered} /></div>`
          : html`<${Table}
              label="Agents"
              rows=${rows}
              columns=${columnsOf(moneyByAgent(spent.value ?? []))}
              keyOf=${(/** @type {Agent} */ each) => each.agent_id}
              open=${(/** @type {Agent} */ each) => go(to("agent", each.agent_id))}
              height=${mostHeight()}
            />`}
    <//>
  </section>`;
}

/** The most height of one of two tables on a page. */
export function mostHeight() {
  return Math.max(320, Math.round(innerHeight * 0.45));
}

/** @param {{isFiltered: boolean}} props */
function NoAgents({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No agent matches" icon="fleet">Change or clear the filters.<//>`;
  return html`<${Empty} title="No agent has acted yet" icon="fleet">Connect one: <code>vox-mesh setup</code> shows how.<//>`;
}

/** @param {Map<string, string>} money @returns {import("../../parts/table.js").Column<Agent>[]} */
function columnsOf(money) {
  return [
    { name: "agent", label: "Agent", width: "minmax(84px, 1fr)", cell: nameOf, narrow: (agent) => html`<${TwoLines} top=${nameOf(agent)} below=${html`<${WorksOn} of=${agent} />`} />` },
    { name: "state", label: "State", width: "92px", cell: (agent) => html`<${AgentState} of=${agent} />` },
    { name: "works", label: "Works on", width: "minmax(0, 3.4fr)", isWide: true, cell: (agent) => html`<${WorksOn} of=${agent} />` },
    { name: "since", label: "For", width: "64px", isRight: true, isWide: true, cell: (agent) => html`<${Since} ms=${agent.jobs[0]?.started_ms} />` },
    { name: "seen", label: "Last seen", width: "88px", isWide: true, cell: (agent) => html`<${Time} ms=${agent.last_seen_ms} />` },
    { name: "node", label: "Node", width: "minmax(0, .6fr)", isWide: true, cell: (agent) => (agent.node_id === null ? html`<span class="quiet">–</span>` : html`<${Link} href=${to("fleet", "", { node: agent.node_id })}><${Line} text=${agent.node_id} max=${40} /><//>`) },
    { name: "unread", label: "Unread", width: "64px", isRight: true, isWide: true, cell: (agent) => count(agent.unread, to("messages", "", { for: agent.agent_id })) },
    { name: "locks", label: "Locks", width: "56px", isRight: true, isWide: true, cell: (agent) => count(agent.lock_count, to("locks", "", { agent: agent.agent_id })) },
    { name: "cost", label: "Cost, 24 h", width: "92px", isRight: true, isWide: true, cell: (agent) => money.get(agent.agent_id) ?? html`<span class="quiet">–</span>` },
  ];
}

/** @param {Agent} agent */
function nameOf({ agent_id: name }) {
  return html`<${Link} href=${to("agent", name)}><${Line} text=${name} max=${60} /><//>`;
}

/** @param {number} value @param {string} href */
function count(value, href) {
  return value > 0 ? html`<${Link} href=${href}>${value.toLocaleString("en")}<//>` : html`<span class="quiet">0</span>`;
}

/** The state of an agent: one that waits for a lock is shown as such.
 * @param {{of: {state: string, waits_for_count: number}}} props */
export function AgentState({ of: { state, waits_for_count: waits } }) {
  return waits > 0 && state !== "gone" ? html`<${Badge} state="waiting" />` : html`<${Badge} state=${state} />`;
}

/** The task that an agent claims to work on, or else its jobs; or what it waits for.
 * @param {{of: Agent}} props */
export function WorksOn({ of: agent }) {
  const [job] = agent.jobs;
  const [awaited] = agent.waits_for;
  if (awaited !== undefined) {
    return html`<span class="fleet-works"><span class="quiet">waits for</span><${Link} href=${to("locks", "", { key: awaited })}><code><${Line} text=${awaited} max=${80} /></code><//></span>`;
  }
  if (!job && agent.task_id === null) return html`<span class="quiet">–</span>`;
  return html`<span class="fleet-works">
    ${agent.task_id !== null && html`<${Line} text=${agent.task_id} max=${60} /><span class="quiet">${agent.task_state}</span>`}
    ${job && html`<${Link} href=${to("job", job.job_id)}><${Line} text=${job.kind} max=${60} /><//>`}
    ${agent.job_count > 1 && html`<span class="quiet">+${agent.job_count - 1}</span>`}
  </span>`;
}

/** Return what each agent has spent, as text.
 * @param {{agent: string, tokens: {money: string | null, currency: string | null}}[]} rows */
function moneyByAgent(rows) {
  /** @type {Map<string, Map<string, number>>} */
  const sums = new Map();
  for (const { agent, tokens } of rows) {
    const own = sums.get(agent) ?? new Map();
    if (tokens.money !== null) own.set(tokens.currency, (own.get(tokens.currency) ?? 0) + Number(tokens.money));
    sums.set(agent, own);
  }
  return new Map([...sums].map(([agent, own]) => [agent, [...own].map(([currency, sum]) => `${sum.toFixed(2)} ${currency}`).join(", ")]));
}
