/** The fleet: agents and nodes, what each works on and since when. */
import { html } from "../vendor.js";
import { Link, route, to } from "../app/router.js";
import { may } from "../app/session.js";
import { NoFilters, TextFilter } from "../parts/filter.js";
import { Page } from "../parts/page.js";
import { Line } from "../parts/text.js";
import { Agents } from "./fleet/agents.js";
import { Nodes } from "./fleet/nodes.js";
import { useWhole } from "./fleet/whole.js";

const FILTERS = ["find", "node"];
const STREAMED_AGENTS = 50;
const STREAMED_NODES = 200;

/** @typedef {import("./fleet/agents.js").Agent} Agent */
/** @typedef {import("./fleet/nodes.js").MeshNode} MeshNode */

export default function Fleet() {
  const [find = "", only = ""] = FILTERS.map((name) => (route.value.query.get(name) ?? "").toLowerCase());
  const agents = useWhole("agents", STREAMED_AGENTS, "/v1/agents", { limit: 200 }, (/** @type {Agent} */ each) => each.agent_id);
  const nodes = useWhole("nodes", STREAMED_NODES, "/v1/nodes", { limit: 500, all: true }, (/** @type {MeshNode} */ each) => each.node_id);
  const isFound = (/** @type {(string | null)[]} */ ...texts) => texts.some((each) => each?.toLowerCase().includes(find));
  const isAt = (/** @type {string | null} */ node) => !only || node?.toLowerCase() === only;
  const shownAgents = agents.value?.filter((each) => isAt(each.node_id) && isFound(each.agent_id, each.node_id, each.state, each.task_id));
  const shownNodes = nodes.value?.filter((each) => isAt(each.node_id) && isFound(each.node_id, each.host, each.state, each.role, ...each.kinds));
  return html`<${Page}
    title="Fleet"
    note=${agents.value && nodes.value && noteOf(agents.value, nodes.value)}
    actions=${may("send_message") && html`<${Link} class="button" href=${to("messages", "", { write: "1", to: "*" })}>Write to everyone<//>`}
  >
    <div class="filters" role="search">
      <${TextFilter} name="find" label="Find" placeholder="name, state, kind, host" />
      ${only && html`<span>at node <strong><${Line} text=${route.value.query.get("node")} max=${60} /></strong></span>`}
      <${NoFilters} names=${FILTERS} />
    </div>
    <${Agents} found=${{ ...agents, value: shownAgents }} isFiltered=${Boolean(find || only)} />
    <${Nodes} found=${{ ...nodes, value: shownNodes }} />
  <//>`;
}

/** @param {Agent[]} agents @param {MeshNode[]} nodes */
function noteOf(agents, nodes) {
  const alive = agents.filter((each) => each.state === "alive").length;
  const live = nodes.filter((each) => each.state !== "dead" && each.state !== "left").length;
  return `${alive} of ${agents.length} agents alive, ${live} of ${nodes.length} nodes live`;
}
