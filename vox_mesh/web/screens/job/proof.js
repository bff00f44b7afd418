/** The proof of a job: that its record is what its worker signed. */
import { html, useEffect, useState } from "../../vendor.js";
import { get, segment, words } from "../../app/api.js";
import { Badge } from "../../parts/badge.js";
import { Facts } from "../../parts/page.js";
import { Act } from "../../parts/button.js";
import { Id, Line, Text } from "../../parts/text.js";

const SMALL_BYTES = 16 * 2 ** 20;
const TIMEOUT_MS = 120_000;

/** @param {{job: any}} props */
export function Proof({ job }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const verify = async () => {
    setProblem("");
    try {
      setFound(await get(`/v1/jobs/${segment(job.job_id)}/verify`, {}, { timeoutMs: TIMEOUT_MS }));
    } catch (error) {
      setProblem(words(error));
    }
  };
  // Outputs are read to verify them: large ones only when asked for.
  const size = job.output_artifacts.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + (each.size ?? 0), 0);
  useEffect(() => void (size <= SMALL_BYTES && verify()), [job.last_op]);
  return html`<section class="panel" aria-labelledby="job-proof">
    <div class="row"><h2 id="job-proof">Proof</h2>${found && html`<${Badge} state=${found.valid ? "verified" : "broken"} text=${found.valid ? "verified" : "not valid"} />`}
      <${Act} class="small" needs="verify_job" run=${verify}>${found ? "Verify again" : "Verify"}<//></div>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${found && html`<p class="quiet small">${found.valid ? "The record and the outputs are what the worker signed." : "The record can't be trusted:"}</p>`}
    ${found?.faults.map((/** @type {string} */ each) => html`<p class="problem"><${Text} text=${each} /></p>`)}
    ${found?.remarks.map((/** @type {string} */ each) => html`<p class="quiet small"><${Text} text=${each} /></p>`)}
    ${found?.trailers && html`<details><summary>Trailers for a git commit</summary><${Facts} of=${Object.entries(found.trailers).map(([name, value]) => [name, html`<${Id} id=${String(value)} length=${28} label=${name}><${Line} text=${value} max=${32} /><//>`])} /></details>`}
  </section>`;
}
