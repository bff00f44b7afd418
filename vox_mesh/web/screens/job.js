/** One job: how it stands, its attempts, its output, what it waits for, and what it left. */
import { html, useEffect } from "../vendor.js";
import { get, segment } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { may } from "../app/session.js";
import { listen, useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Bar, Empty, Loaded, Page } from "../parts/page.js";
import { Id, Line, Text } from "../parts/text.js";
import { Actions } from "./job/actions.js";
import { Attempts, useTrace } from "./job/attempts.js";
import { Dependencies } from "./job/dependencies.js";
import { Facets } from "./job/facts.js";
import { Log } from "./job/log.js";
import { Outputs } from "./job/outputs.js";
import { Proof } from "./job/proof.js";
import { Question } from "./job/question.js";
import { Trace } from "./job/trace.js";
import { isOpen, reasonOf, shownState } from "./jobs/model.js";

const PROGRESS_MS = 1_500;
/** The answers to an id that no job has, and to what is no id. */
const NO_JOB = [404, 422];

export default function Job() {
  const { id } = route.value;
  const job = useJob(id);
  if (!job.value && NO_JOB.includes(/** @type {any} */ (job.problem)?.status)) {
    return html`<${Page} title="Job"><${Empty} title="There is no such job" icon="question"><${Link} href=${to("jobs")}>See all jobs<//><//><//>`;
  }
  if (!job.value) return html`<${Page} title="Job"><${Loaded} of=${job}>${() => null}<//><//>`;
  return html`<${Loaded} of=${job}>${(/** @type {any} */ found) => html`<${Whole} job=${found} reload=${job.reload} key=${found.job_id} />`}<//>`;
}

/** Read a job now, after each entry of the log that names it, and often while it runs: progress is not in the log.
 * @param {string} id */
function useJob(id) {
  const job = useLive((signal) => get(`/v1/jobs/${segment(id)}`, {}, { signal }), [], id);
  const name = job.value?.job_id ?? id;
  useEffect(() => listen(["job", "op"], (_, entry) => JSON.stringify(entry?.payload ?? "").includes(name) && job.reload()), [name]);
  const isRunning = job.value?.state === "running";
  useEffect(() => {
    if (!isRunning) return;
    const timer = setInterval(() => !document.hidden && job.reload(), PROGRESS_MS);
    return () => clearInterval(timer);
  }, [isRunning]);
  return job;
}

/** @param {{job: any, reload: () => void}} props */
function Whole({ job, reload }) {
  const state = shownState(job);
  const trace = useTrace(job);
  return html`<${Page} title=${`${job.kind.slice(0, 60)} ${job.job_id.slice(0, 8)}`} heading=${job.kind.slice(0, 60)}
    note=${html`<span class="row"><${Badge} state=${state} /><${Id} id=${job.job_id} label="job's id" /></span>`}
    actions=${html`<${Actions} job=${job} reload=${reload} />`}>
    <${Now} job=${job} />
    ${state === "question" && html`<${Question} job=${job} reload=${reload} />`}
    <${Attempts} job=${job} trace=${trace} />
    <${Dependencies} job=${job} />
    ${may("read_job_logs") && html`<${Log} job=${job} />`}
    <div class="columns">
      <${Facets} job=${job} trace=${trace} />
      <div class="job-side">
        ${job.output_artifacts.length > 0 && html`<${Outputs} job=${job} />`}
        ${!isOpen(job) && job.attempts > 0 && html`<${Proof} job=${job} />`}
        <${Trace} job=${job} />
      </div>
    </div>
  <//>`;
}

/** What it does at present, or why it does not, or how it ended.
 * @param {{job: any}} props */
function Now({ job }) {
  const isRunning = job.state === "running";
  return html`${isRunning && job.progress !== null && html`<div class="job-progress">
      <${Bar} share=${job.progress} label="Progress" isProgress /><span class="number">${Math.round(100 * job.progress)} %</span>
      ${job.message && html`<${Line} text=${job.message} max=${200} />`}
    </div>`}
    ${isRunning && job.progress === null && job.message && html`<p><${Text} text=${job.message} /></p>`}
    ${job.reason && shownState(job) !== "question" && html`<p class=${job.state === "failed" ? "problem" : "quiet"}><${Text} text=${reasonOf(job)} /></p>`}
    ${job.held_back && html`<p class="problem">No worker claims it: <${Text} text=${job.held_back} /></p>`}`;
}
