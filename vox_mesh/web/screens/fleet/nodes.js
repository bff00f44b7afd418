/** Nodes: their state, role and load; draining a worker, and removing a node that is gone. */
import { html, useEffect } from "../../vendor.js";
import { segment, send } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { listen, useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Act } from "../../parts/button.js";
import { ask } from "../../parts/dialog.js";
import { Bar, Loaded } from "../../parts/page.js";
import { Table, TwoLines } from "../../parts/table.js";
import { Line, Text, plain } from "../../parts/text.js";
import { Since, Time } from "../../parts/time.js";
import { toast } from "../../parts/toast.js";
import { mostHeight } from "./agents.js";
import { readAll } from "./whole.js";

/**
 * @typedef {{node_id: string, state: string, role: string, agent_id: string | null, last_seen_ms: number, left_ms: number | null,
 *   started_ms: number | null, activity: string, host: string | null, version: string | null, schema_version: number | null, kinds: string[], capacity: number,
 *   load: number, replica_lag_ms: number | null, faults: string[]}} MeshNode
 */

const GONE = ["dead", "left"];

/** @param {{found: {value: MeshNode[] | undefined, problem: unknown}}} props */
export function Nodes({ found }) {
  const draining = useDraining();
  return html`<section class="stack" aria-labelledby="fleet-nodes">
    <h2 id="fleet-nodes">Nodes</h2>
    <${Loaded} of=${found}>
      ${(/** @type {MeshNode[]} */ rows) =>
        rows.length === 0
          ? html`<p class="quiet">No node matches.</p>`
          : html`<${Table} label="Nodes" rows=${rows} columns=${columnsOf(draining)} keyOf=${(/** @type {MeshNode} */ each) => each.node_id} height=${mostHeight()} />`}
    <//>
  </section>`;
}

/** The names of the nodes that claim no jobs, read again when the log says that one was drained or not any more. */
function useDraining() {
  const workers = useLive(async (signal) => readAll("/v1/workers", { limit: 500 }, signal), []);
  useEffect(() => {
    const stop = listen(["op", "job"], (_, entry) => /^(Und|D)rainNode$/.test(entry?.kind) && workers.reload());
    return () => void stop();
  }, []);
  return new Set((workers.value ?? []).filter((each) => each.draining).map((each) => each.node_id));
}

/** @param {Set<string>} draining @returns {import("../../parts/table.js").Column<MeshNode>[]} */
function columnsOf(draining) {
  return [
    { name: "node", label: "Node", width: "minmax(0, 1.3fr)", cell: nameOf, narrow: (node) => html`<${TwoLines} top=${nameOf(node)} below=${html`${stateOf(node, draining)}<${Lasting} of=${node} />`} />` },
    { name: "state", label: "State", width: "104px", isWide: true, cell: (node) => stateOf(node, draining) },
    { name: "role", label: "Role", width: "minmax(0, .9fr)", isWide: true, cell: (node) => html`<${Line} text=${roleOf(node)} max=${40} />` },
    { name: "load", label: "Load", width: "minmax(110px, .9fr)", isWide: true, cell: (node) => html`<${Load} of=${node} />` },
    { name: "works", label: "Works on", width: "minmax(0, 1.7fr)", isWide: true, cell: (node) => html`<${Activity} of=${node} />` },
    { name: "version", label: "Version", width: "80px", isWide: true, cell: (node) => html`<${Line} text=${`${node.version} (${node.schema_version})`} max=${20} />` },
    { name: "since", label: "Since", width: "112px", isWide: true, cell: (node) => html`<${Lasting} of=${node} />` },
    { name: "act", label: "Actions", isLabelUnseen: true, width: "92px", isRight: true, cell: (node) => html`<${Action} of=${node} isDraining=${draining.has(node.node_id)} />` },
  ];
}

/** @param {MeshNode} node */
function isGone(node) {
  return GONE.includes(node.state);
}

/** @param {MeshNode} node */
function nameOf(node) {
  return html`<span title=${plain(titleOf(node))}><${Link} href=${to("fleet", "", { node: node.node_id })}><${Line} text=${node.node_id} max=${60} /><//></span>`;
}

/** @param {MeshNode} node @param {Set<string>} draining */
function stateOf(node, draining) {
  return html`<${Badge} state=${draining.has(node.node_id) && !isGone(node) ? "draining" : node.state} />`;
}

/** @param {MeshNode} node */
function roleOf({ role }) {
  return role.replaceAll("+", ", ");
}

/** How long a node has been up, or when it went.
 * @param {{of: MeshNode}} props */
function Lasting({ of: node }) {
  return isGone(node) ? html`<${Time} ms=${node.left_ms ?? node.last_seen_ms} />` : html`<span>up <${Since} ms=${node.started_ms} /></span>`;
}

/** @param {MeshNode} node */
function titleOf({ host, version, agent_id: agent }) {
  return [host && `on ${host.slice(0, 100)}`, version && `version ${version.slice(0, 40)}`, agent && `agent ${agent.slice(0, 100)}`].filter(Boolean).join(", ");
}

/** @param {{of: MeshNode}} props */
function Load({ of: node }) {
  if (node.capacity === 0 || isGone(node)) return html`<span class="quiet">–</span>`;
  const text = `${node.load} of ${node.capacity}`;
  return html`<span class="fleet-load"><${Bar} share=${node.load / node.capacity} label=${`Running jobs of ${node.node_id.slice(0, 60)}`} /><span class="number">${text}</span></span>`;
}

/** What a node reports; what is wrong with it comes first.
 * @param {{of: MeshNode}} props */
function Activity({ of: node }) {
  if (node.faults.length > 0 && !isGone(node)) return html`<${Badge} state="fault" tone="warn" shape="diamond" text="not ready" /> <${Line} text=${node.faults.join(", ")} max=${120} />`;
  if (node.activity) return html`<${Line} text=${node.activity} max=${120} />`;
  return node.kinds.length > 0 ? html`<span class="quiet">takes <${Line} text=${node.kinds.join(", ")} max=${80} /></span>` : html`<span class="quiet">–</span>`;
}

/** @param {{of: MeshNode, isDraining: boolean}} props */
function Action({ of: node, isDraining }) {
  const path = `/v1/workers/${segment(node.node_id)}/drain`;
  const name = node.node_id.slice(0, 60);
  if (isGone(node)) return html`<${Act} class="small" needs="remove_node" label=${`Remove ${name}`} run=${() => remove(node)}>Remove…<//>`;
  if (isDraining) return html`<${Act} class="small" needs="undrain_worker" label=${`Undrain ${name}`} done="It claims jobs again." run=${() => send("DELETE", path)}>Undrain<//>`;
  return node.capacity > 0 && html`<${Act} class="small" needs="drain_worker" label=${`Drain ${name}`} run=${() => drain(node, path)}>Drain…<//>`;
}

/** @param {MeshNode} node @param {string} path */
function drain(node, path) {
  return ask({
    title: "Drain this node?",
    text: html`<p><strong><${Text} text=${node.node_id} max=${100} /></strong> claims no more jobs until you undrain it. Its ${node.load} running jobs continue.</p>`,
    action: "Drain the node",
    run: async () => {
      await send("PUT", path);
      toast("It claims no more jobs.");
    },
  });
}

/** @param {MeshNode} node */
function remove(node) {
  return ask({
    title: "Remove this node?",
    text: html`<p><strong><${Text} text=${node.node_id} max=${100} /></strong> ${node.state === "left" ? "has left" : "is dead"}. It disappears from the fleet; its entries in the op log stay. If it starts again, it joins again.</p>`,
    action: "Remove the node",
    isDanger: true,
    run: async () => {
      await send("DELETE", `/v1/nodes/${segment(node.node_id)}`);
      toast("Removed the node.");
    },
  });
}
