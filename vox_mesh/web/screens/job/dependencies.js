/** What a job waits for, and what waits for it. */
import { html } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { useLive } from "../../app/state.js";
import { Loaded } from "../../parts/page.js";
import { Drawing } from "../jobs/graph.js";

/** @param {{job: any}} props */
export function Dependencies({ job }) {
  const count = job.predecessors.length + job.successors.length;
  return count > 0 && html`<${Neighbours} job=${job} />`;
}

/** @param {{job: any}} props */
function Neighbours({ job }) {
  const layout = useLive((signal) => get(`/v1/jobs/${segment(job.job_id)}/layout`, {}, { signal }), ["job"], job.job_id);
  return html`<section class="panel" aria-labelledby="job-graph">
    <h2 id="job-graph">Dependencies <span class="quiet small">waits for ${job.predecessors.length}, ${job.successors.length} wait${job.successors.length === 1 ? "s" : ""} for it</span></h2>
    <${Loaded} of=${layout}>${(/** @type {any} */ found) => html`<${Drawing} layout=${found} label="Dependencies of this job" current=${job.job_id} />`}<//>
  </section>`;
}
