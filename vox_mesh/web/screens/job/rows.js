/** The rows of the timeline of a job: its attempts, and its durable steps. */
import { html, useEffect, useState } from "../../vendor.js";
import { get, segment, words } from "../../app/api.js";
import { listen, useLive } from "../../app/state.js";
import { Badge, toneOf } from "../../parts/badge.js";
import { Line } from "../../parts/text.js";
import { duration } from "../../parts/time.js";

/** @param {{attempt: Pick<import("./history.js").Attempt, "number" | "claimed" | "started" | "ended" | "state" | "reason">, share: (at: number) => string, now?: number, said?: string | null, children: any}} props
 * `said`: the reason that the page shows of the whole job. */
export function Row({ attempt, share, now = 0, said, children }) {
  const { number, claimed, started, ended, state, reason } = attempt;
  const width = (/** @type {number} */ from, /** @type {number} */ to) => ({ left: share(from), width: `max(3px, calc(${share(to)} - ${share(from)}))` });
  return html`<li>
    <div class="job-words">
      <b>${number}</b><${Badge} state=${state} />${children}<span class="quiet">for ${duration((ended ?? now) - claimed)}</span>
    </div>
    <div class="job-lane" aria-hidden="true">
      <i class="job-claimed" style=${width(claimed, started ?? ended ?? now)}></i>
      ${started !== null && html`<i class=${`job-bar ${toneOf(state)} ${ended === null ? "open" : ""}`} style=${width(started, ended ?? now)}></i>`}
    </div>
    ${reason && reason !== said && html`<p class="quiet small"><${Line} text=${reason} max=${300} /></p>`}
  </li>`;
}

/** The steps: a page, and further ones when asked for. They are read again when one is stored.
 * @param {{job: any, attempts: import("./history.js").Attempt[], share: (at: number) => string, cursor?: string}} props */
export function Steps({ job, attempts, share, cursor }) {
  const { job_id: id, last_op: last } = job;
  const [isMore, setMore] = useState(false);
  const { value, problem, reload } = useLive((signal) => get(`/v1/jobs/${segment(id)}/steps`, { cursor }, { signal }), []);
  useEffect(() => {
    reload();
    return listen(["progress"], (_, each) => each.job_id === id && reload());
  }, [last]);
  return html`${problem && html`<li class="problem">${words(problem)}</li>`}${!cursor && value?.items[0] && html`<li><h3>Steps</h3></li>`}
    ${value?.items.map((/** @type {any} */ each) => html`<${Row} attempt=${{ ...each, number: each.place, claimed: each.began_ms, started: each.began_ms, ended: each.ended_ms, reason: each.is_signed ? each.value?.error : "not signed" }} share=${share} key=${each.place}>
      <${Line} text=${each.name} max=${60} /><span class="quiet">${each.kind}, attempt ${attempts.findLast(({ claimed }) => claimed <= each.ended_ms)?.number ?? "–"}${each.failures > 0 && `, ${each.failures} failed`}</span><//>`)}
    ${value?.next && (isMore ? html`<${Steps} job=${job} attempts=${attempts} share=${share} cursor=${value.next} />` : html`<li><button class="small" onClick=${() => setMore(true)}>More steps</button></li>`)}`;
}
