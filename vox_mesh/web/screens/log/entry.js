/** One entry of the log: its content, its causes, and whether it is as it was written. */
import { html } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Facts, Loaded } from "../../parts/page.js";
import { Id, Json, Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";

/** @param {{id: string, close: () => void}} props */
export function EntryDetails({ id, close }) {
  const found = useLive((signal) => read(id, signal), [], id);
  return html`<section class="panel stack" aria-label="Entry">
    <div class="row">
      <h2>Entry</h2>
      <${Id} id=${id} length=${26} label="id of the op" />
      <button class="plain small" onClick=${close}>Close</button>
    </div>
    <${Loaded} of=${found}>
      ${(/** @type {Awaited<ReturnType<typeof read>>} */ { entry, causes, authenticity }) => html`<div class="columns">
        <div class="stack">
          <${Facts} of=${facts(entry, authenticity)} />
          <h3>Content</h3>
          <${Json} value=${entry.payload} />
        </div>
        <div class="stack">
          <h3>What led to it</h3>
          <${Causes} causes=${causes} id=${entry.op_id} />
        </div>
      </div>`}
    <//>
  </section>`;
}

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const path = `/v1/oplog/${segment(id)}`;
  const [entry, causes, authenticity] = await Promise.all(
    [path, `${path}/causes`, `${path}/authenticity`].map((each) => get(each, {}, { signal })),
  );
  return { entry, causes, authenticity };
}

/** @param {any} entry @param {any} authenticity @returns {[string, any][]} */
function facts(entry, authenticity) {
  const isSound = authenticity.is_authentic && !authenticity.has_changed_verdict;
  const job = entry.payload?.job_id ?? entry.payload?.jobs?.[0]?.job_id;
  return [
    ["Kind", entry.kind],
    ["When", html`<${Time} ms=${Number(entry.hlc.split("-")[0])} />`],
    ["By", html`<${Link} href=${to("agent", entry.agent)}><${Line} text=${entry.agent} /><//> at <${Link} href=${to("fleet", "", { node: entry.node_id })}><${Line} text=${entry.node_id} /><//>, entry ${entry.seq} of its chain`],
    ["Verdict", html`<${Badge} state=${entry.accepted ? "applied" : "refused"} /> ${entry.reason && html`<${Line} text=${entry.reason} />`}`],
    ["Integrity", html`<${Badge} state=${isSound ? "verified" : "broken"} text=${isSound ? "as it was written" : "not as it was written"} />`],
    ["Job", typeof job === "string" ? html`<${Link} href=${to("job", job)}>${job.slice(0, 12)}…<//>` : null],
    ["Hash", html`<${Id} id=${entry.hash} label="hash" />`],
  ];
}

/** @param {{causes: {ops: any[], is_cut: boolean}, id: string}} props */
function Causes({ causes, id }) {
  const others = causes.ops.filter((each) => each.op_id !== id);
  if (others.length === 0) return html`<p class="quiet">It names no earlier op as its cause.</p>`;
  return html`<ol class="stack">
    ${others.map(
      (each) => html`<li class="row" key=${each.op_id}>
        <${Link} href=${to("log", "", { op: each.op_id })}>${each.kind}<//>
        <span class="quiet small"><${Line} text=${each.agent} max=${30} /> · <${Time} ms=${each.at_ms} /></span>
        ${!each.accepted && html`<${Badge} state="refused" />`}
      </li>`,
    )}
    ${causes.is_cut && html`<li class="quiet">Earlier ones are not shown.</li>`}
  </ol>`;
}
