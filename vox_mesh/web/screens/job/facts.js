/** What is recorded about a job, and its manifest without the values of variables. */
import { html } from "../../vendor.js";
import { Link, to } from "../../app/router.js";
import { Facts } from "../../parts/page.js";
import { Id, Json, Line } from "../../parts/text.js";
import { duration, Time } from "../../parts/time.js";

const HIDDEN = "(hidden)";

/** @param {{job: any, trace: {value: any}}} props */
export function Facets({ job, trace }) {
  const { manifest } = job;
  const scheduled = trace.value?.jobs.find((/** @type {any} */ each) => each.job_id === job.job_id)?.ops[0];
  const tags = Array.isArray(manifest?.tags) ? manifest.tags.join(", ") : null;
  return html`<section class="panel stack" aria-labelledby="job-facts">
    <h2 id="job-facts">Details</h2>
    <${Facts} of=${[
      ["Kind", html`<${Link} href=${to("jobs", "", { kind: job.kind })}><${Line} text=${job.kind} /><//>`],
      ["ULID", html`<${Id} id=${job.ulid} length=${26} label="ULID" />`],
      ["Priority", job.priority],
      ["Scheduled", html`<${Time} ms=${job.created_ms} /> by <${Scheduler} op=${scheduled} node=${job.scheduled_by} />`],
      ["Started", job.started_ms && html`<${Time} ms=${job.started_ms} />`],
      ["Ended", job.ended_ms && html`<${Time} ms=${job.ended_ms} />`],
      ["Took", job.started_ms && job.ended_ms && duration(job.ended_ms - job.started_ms)],
      ["Not before", job.state === "pending" && job.not_before_ms > Date.now() ? html`<${Time} ms=${job.not_before_ms} />` : null],
      ["Node", job.claimer && html`<${Link} href=${to("jobs", "", { node: job.claimer })}><${Line} text=${job.claimer} max=${60} /><//>`],
      ["Lease until", job.lease_until_ms && html`<${Time} ms=${job.lease_until_ms} />`],
      ["Exit code", job.exit_code],
      ["Tags", tags && html`<${Line} text=${tags} />`],
      ["Retry of", job.retry_of && html`<${Link} href=${to("job", job.retry_of)}>${job.retry_of.slice(0, 12)}<//>`],
    ]} />
    <h3>Manifest</h3>
    <${Json} value=${withoutSecrets(manifest)} />
    ${job.checkpoint !== null && job.checkpoint !== undefined && html`<h3>Checkpoint</h3><${Json} value=${job.checkpoint} />`}
  </section>`;
}

/** Who scheduled it: an agent or a person, or a node by itself.
 * @param {{op: any, node: string}} props */
function Scheduler({ op, node }) {
  const agent = op?.kind === "ScheduleJob" && op.agent !== node ? op.agent : null;
  return agent ? html`<${Link} href=${to("agent", agent)}><${Line} text=${agent} max=${60} /><//> at <${Line} text=${node} max=${60} />` : html`<${Line} text=${node} max=${60} />`;
}

/** Return a manifest without the values of its variables: they may be secrets.
 * @param {any} manifest */
export function withoutSecrets(manifest) {
  const env = manifest?.env;
  if (!env || typeof env !== "object") return manifest;
  return { ...manifest, env: Object.fromEntries(Object.keys(env).map((name) => [name, HIDDEN])) };
}
