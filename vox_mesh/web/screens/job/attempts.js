/** The timeline of attempts: a bar each, on one axis of time, with the same in words. */
import { html, useEffect, useState } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { may } from "../../app/session.js";
import { useLive } from "../../app/state.js";
import { Loaded } from "../../parts/page.js";
import { Line } from "../../parts/text.js";
import { duration } from "../../parts/time.js";
import { isOpen } from "../jobs/model.js";
import { attemptsOf, ticksOf } from "./history.js";
import { Row, Steps } from "./rows.js";

const MAX_SHOWN = 50;
const REDRAW_MS = 1_000;
/** The share of the axis after which a label has no room. */
const MOST_TICK = 0.93;

/** @typedef {import("./history.js").Attempt} Attempt */

/** Read the entries of the log that name a job, again when there is another one.
 * @param {any} job */
export function useTrace(job) {
  const read = (/** @type {AbortSignal} */ signal) => get(`/v1/jobs/${segment(job.job_id)}/trace`, { alone: true }, { signal });
  return useLive(read, [], `${job.job_id} ${job.last_op}`);
}

/** @param {{job: any, trace: {value: any, problem: unknown}}} props */
export function Attempts({ job, trace }) {
  return html`<section class="panel" aria-labelledby="job-attempts">
    <h2 id="job-attempts">Attempts <span class="quiet small">${job.attempts} of up to ${job.max_attempts}${job.interruptions > 0 ? `, ${job.interruptions} interrupted` : ""}</span></h2>
    <${Loaded} of=${trace}>${(/** @type {any} */ found) => {
      const attempts = attemptsOf(found.jobs.find((/** @type {any} */ each) => each.job_id === job.job_id)?.ops ?? [], job.state, job.reason);
      return attempts.length === 0 ? html`<p class="quiet">No worker or agent has taken it yet.</p>` : html`<${Timeline} attempts=${attempts} job=${job} />`;
    }}<//>
  </section>`;
}

/** @param {{attempts: Attempt[], job: any}} props */
function Timeline({ attempts, job }) {
  const now = useNow(isOpen(job));
  const from = job.created_ms;
  const until = Math.max(from + 1, ...attempts.map((each) => each.ended ?? now), isOpen(job) ? now : (job.ended_ms ?? from));
  const share = (/** @type {number} */ at) => `${(100 * Math.max(0, at - from)) / (until - from)}%`;
  const shown = attempts.slice(-MAX_SHOWN);
  return html`${shown.length < attempts.length && html`<p class="quiet small">The last ${MAX_SHOWN} of ${attempts.length}.</p>`}
    <ol class="job-timeline">
      ${shown.map((each) => html`<${Row} attempt=${each} share=${share} now=${now} said=${job.reason} key=${each.number}>${each.agent && html`<${Link} href=${to("agent", each.agent)}><${Line} text=${each.agent} max=${40} /><//>`}<span class="quiet">at <${Line} text=${each.node} max=${40} /></span><//>`)}
      ${may("list_steps") && html`<${Steps} job=${job} attempts=${attempts} share=${share} />`}
      <li class="job-axis" aria-hidden="true"><span></span><div>${ticksOf(from, until, 5).filter((at) => at < MOST_TICK * (until - from)).map((at) => html`<i style=${{ left: share(from + at) }}>${at === 0 ? "scheduled" : `+${duration(at)}`}</i>`)}</div></li>
    </ol>`;
}

/** Return the time, each second while something lasts.
 * @param {boolean} isLasting */
function useNow(isLasting) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isLasting) return;
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), REDRAW_MS);
    return () => clearInterval(timer);
  }, [isLasting]);
  return now;
}
