/** How open jobs, or those of a run of a workflow, depend on each other. */
import { html, useMemo } from "../../vendor.js";
import { get } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { useLive } from "../../app/state.js";
import { Graph } from "../../parts/graph.js";
import { Empty, Loaded } from "../../parts/page.js";
import { Line } from "../../parts/text.js";
import { counted } from "./counts.js";

/** @param {{run: string}} props */
export function JobsGraph({ run }) {
  const layout = useLive((signal) => get("/v1/jobs/layout", { run }, { signal }), ["job"], run);
  return html`<p class="quiet small">${run ? html`The jobs of run <${Line} text=${run} max=${40} />. <${Link} href=${to("jobs", "", { view: "graph" })}>Show all open jobs<//>` : "Open jobs that depend on others, or that others depend on."}</p>
    <${Loaded} of=${layout}>${(/** @type {import("../../parts/graph.js").Layout} */ found) =>
      found.nodes.length === 0
        ? html`<${Empty} title="No open job depends on another" icon="jobs">A job depends on the jobs that its manifest names in <code>after</code>.<//>`
        : html`<${Drawing} layout=${found} label="Dependencies of jobs" />`}<//>`;
}

/** A graph of jobs, and how many are left out.
 * @param {{layout: import("../../parts/graph.js").Layout, label: string, current?: string}} props */
export function Drawing({ layout, label, current }) {
  const shown = useMemo(() => ({ ...layout, nodes: withReasons(layout) }), [layout]);
  return html`<${Graph} layout=${shown} label=${label} current=${current} hrefOf=${hrefOf} />
    ${layout.cut > 0 && html`<p class="quiet small">At least ${counted(layout.cut)} more ${layout.cut === 1 ? "is" : "are"} not drawn.</p>`}`;
}

/** Return the boxes with what a person sees: that a pending job waits for another, and what an op is.
 * @param {import("../../parts/graph.js").Layout} layout */
function withReasons({ nodes, edges }) {
  const done = new Set(nodes.filter((each) => each.state === "succeeded").map((each) => each.id));
  const waiting = new Set(edges.filter((each) => !done.has(each.from)).map((each) => each.to));
  return nodes.map((each) => {
    if (!each.state) return { ...each, title: "entry of the log", label: "awaited" };
    return each.state === "pending" && waiting.has(each.id) ? { ...each, label: "waiting" } : each;
  });
}

/** @param {import("../../parts/graph.js").GraphNode} node */
function hrefOf(node) {
  return node.state ? to("job", node.id) : to("log", "", { op: node.id });
}
