/** What a job left: its result, and files to keep. */
import { html } from "../../vendor.js";
import { get, getBlob, Problem, segment } from "../../app/api.js";
import { may } from "../../app/session.js";
import { Act } from "../../parts/button.js";
import { Json, Line } from "../../parts/text.js";
import { useLive } from "../../app/state.js";

const MAX_BYTES = 256 * 2 ** 20;
const MAX_RESULT = 64 * 1024;
const DOWNLOAD_MS = 10 * 60_000;
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** @param {{job: any}} props */
export function Outputs({ job }) {
  const result = job.output_artifacts.find((/** @type {any} */ each) => each.name === "result");
  return html`<section class="panel" aria-labelledby="job-outputs">
    <h2 id="job-outputs">Outputs</h2>
    <ul class="job-outputs">${job.output_artifacts.map((/** @type {any} */ each) => html`<${Output} job=${job} output=${each} key=${each.name} />`)}</ul>
    ${result && result.size <= MAX_RESULT && job.state === "succeeded" && may("read_job_result") && html`<${Result} job=${job} />`}
  </section>`;
}

/** @param {{job: any, output: any}} props */
function Output({ job, output }) {
  const name = String(output.name ?? "");
  const keep = async () => {
    if (output.size > MAX_BYTES) throw new Problem(413, { detail: "The file is too large for a browser", hint: "use `vox-mesh job artifact`" });
    const blob = await getBlob(`/v1/jobs/${segment(job.job_id)}/artifacts/${segment(name)}`, DOWNLOAD_MS);
    save(blob, name);
  };
  return html`<li>
    <span class="job-output"><${Line} text=${name} max=${120} /><span class="quiet small">${bytes(output.size)} · <${Line} text=${output.type ?? "unknown type"} max=${60} /></span></span>
    <${Act} class="small" needs="read_job_artifact" run=${keep} label=${`Download ${name.slice(0, 80)}`}>Download<//>
  </li>`;
}

/** @param {{job: any}} props */
function Result({ job }) {
  const result = useLive((signal) => get(`/v1/jobs/${segment(job.job_id)}/result`, {}, { signal }), [], job.job_id);
  return result.value ? html`<h3>Result</h3><${Json} value=${result.value.result} />` : null;
}

/** Give the browser a file to keep. It is never opened in this page.
 * @param {Blob} blob @param {string} name */
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  link.download = name.replaceAll(/[^\w.() -]/g, "_").slice(-120) || "artifact";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** @param {number} count */
function bytes(count) {
  let unit = 0;
  let left = count;
  while (left >= 1_000 && unit < UNITS.length - 1) {
    left /= 1_000;
    unit += 1;
  }
  return `${unit === 0 ? left : left.toFixed(1)} ${UNITS[unit]}`;
}
