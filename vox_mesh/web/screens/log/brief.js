/** What an entry of the log says, in one line: the jobs that it names, and its other values in words. */
import { html } from "../../vendor.js";
import { Link, to } from "../../app/router.js";
import { Line } from "../../parts/text.js";

const MAX_VALUES = 4;
const MAX_VALUE = 24;
/** Values that say nothing to a person: when, in ms, and secrets of the protocol. */
const DULL = /^(?:at_ms|agent|jobs|job_id|claim_token|lease_duration_ms|verdicts|applied_as|arguments|resets|usage|heads)$/;

/** @typedef {{job_id: string, kind: string}} Named */

/** @param {{of: {payload: any, reason: string | null}}} props */
export function Brief({ of: { payload, reason } }) {
  const jobs = jobsOf(payload);
  const [first] = jobs;
  return html`<span class="fleet-works">
    ${first && html`<${Link} href=${to("job", first.job_id)}><${Line} text=${first.kind || first.job_id.slice(0, 8)} max=${40} /><//>`}
    ${jobs.length > 1 && html`<span class="quiet">+${jobs.length - 1}</span>`}
    <${Line} text=${reason ?? valuesOf(payload, first)} max=${200} />
  </span>`;
}

/** Return the jobs that a payload names; their kinds are known where they are scheduled.
 * @param {any} payload @returns {Named[]} */
function jobsOf(payload) {
  const named = payload?.jobs ?? payload?.arguments?.jobs ?? (payload?.job_id ? [payload] : []);
  if (!Array.isArray(named)) return [];
  return named.filter((each) => typeof each?.job_id === "string").map((each) => ({ job_id: each.job_id, kind: String(each.kind ?? "") }));
}

/** @param {any} payload @param {any} job */
function valuesOf(payload, job) {
  if (payload === null || typeof payload !== "object" || Array.isArray(payload)) return payload;
  const own = job ? payload.jobs?.[0] : undefined;
  const reason = typeof own?.reason === "string" ? [["", own.reason]] : [];
  const given = Object.entries(payload).filter(([name, value]) => !DULL.test(name) && value !== null && value !== "");
  return [...reason, ...given].slice(0, MAX_VALUES).map(([name, value]) => (name ? `${name.replaceAll("_", " ")}: ${short(value)}` : value)).join(", ");
}

/** @param {any} value */
function short(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > MAX_VALUE && !text.includes(" ") ? `${text.slice(0, MAX_VALUE)}…` : text;
}
