/** The entries of the log that led to the state of a job, and those of the jobs that it waited for. */
import { html, useState } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { useLive } from "../../app/state.js";
import { Loaded } from "../../parts/page.js";
import { Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";

const MAX_SHOWN = 300;

/** @param {{job: any}} props */
export function Trace({ job }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="panel" onToggle=${(/** @type {Event} */ event) => setOpen(/** @type {HTMLDetailsElement} */ (event.currentTarget).open)}>
    <summary><h2>Trace</h2> <span class="quiet small">the entries of the log that led here</span></summary>
    ${isOpen && html`<${Ops} job=${job} />`}
  </details>`;
}

/** @param {{job: any}} props */
function Ops({ job }) {
  const trace = useLive((signal) => get(`/v1/jobs/${segment(job.job_id)}/trace`, {}, { signal }), [], `${job.job_id} ${job.last_op}`);
  return html`<${Loaded} of=${trace}>${(/** @type {any} */ { jobs, is_cut: isCut }) => {
    const ops = jobs.flatMap((/** @type {any} */ each) => each.ops.map((/** @type {any} */ op) => ({ ...op, of: each })));
    ops.sort((/** @type {any} */ left, /** @type {any} */ right) => (left.hlc < right.hlc ? -1 : 1));
    const shown = ops.slice(-MAX_SHOWN);
    return html`${(isCut || shown.length < ops.length) && html`<p class="quiet small">The last ${shown.length} of ${ops.length}${isCut ? " or more" : ""}.</p>`}
      <ol class="job-trace">${shown.map((/** @type {any} */ op) => html`<li key=${op.of.job_id + op.op_id}>
        <${Time} ms=${Number(op.hlc.split("-")[0])} />
        <${Link} href=${to("log", op.op_id)}>${op.kind}<//>
        <span class="quiet"><${Line} text=${op.agent ?? op.node_id} max=${40} />${op.of.job_id !== job.job_id && html` for <${Link} href=${to("job", op.of.job_id)}><${Line} text=${op.of.kind} max=${40} /><//>`}${!op.accepted && ` refused: ${op.reason ?? ""}`}</span>
      </li>`)}</ol>`;
  }}<//>`;
}
