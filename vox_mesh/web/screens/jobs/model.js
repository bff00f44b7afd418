/** What the screens of jobs know about a job. */

/**
 * @typedef {{job_id: string, kind: string, title: string, state: string, priority: number, waits: number, not_before_ms: number,
 *   claimer: string | null, agent: string | null, attempts: number, max_attempts: number, created_ms: number,
 *   started_ms: number | null, ended_ms: number | null, reason: string | null, message: string | null, progress: number | null}} Row
 * A job in a list.
 * @typedef {{state?: string, kind?: string, node?: string, agent?: string, run?: string}} Filter
 */

/** The states, in the order in which a person cares about them. */
export const STATES = ["pending", "claimed", "running", "failed", "aborted", "succeeded"];

const OPEN = new Set(["pending", "claimed", "running"]);
const ASKS = "it waits for an answer";

/** Whether a job has not ended.
 * @param {{state: string}} job */
export function isOpen(job) {
  return OPEN.has(job.state);
}

/** Return the state that a person sees: why a pending job is not taken.
 * @param {{state: string, waits: number, not_before_ms: number, reason: string | null}} job */
export function shownState(job) {
  if (job.state !== "pending") return job.state;
  if (job.waits > 0) return job.reason === ASKS ? "question" : "waiting";
  return job.not_before_ms > Date.now() ? "scheduled" : "pending";
}

/** Return why a job is in its state. One that has asked keeps its reason until it is claimed again.
 * @param {{reason: string | null, waits: number}} job */
export function reasonOf({ reason, waits }) {
  return reason === ASKS && waits === 0 ? "it has its answer" : reason;
}

/** Return a row in the current state of its job. Only a list knows the title, and the agent of a job that was taken.
 * @param {Row} row @param {any} job @returns {Row} */
export function renewed(row, job) {
  const { state, priority, waits, not_before_ms, claimer, attempts, started_ms, ended_ms, reason, message, progress } = job;
  const agent = claimer === row.claimer && started_ms === row.started_ms ? row.agent : null;
  return { ...row, state, priority, waits, not_before_ms, claimer, agent, attempts, started_ms, ended_ms, reason, message, progress };
}

/** Return what a row says beyond its kind: how far it is, or why it is in its state.
 * @param {Row} row */
export function noteOf(row) {
  const { state, progress, message, title, kind } = row;
  const share = state === "running" && progress !== null ? `${Math.round(100 * progress)} % ` : "";
  const text = state === "running" ? message : reasonOf(row);
  return [title === kind ? "" : title, share + (text ?? "")].filter(Boolean).join(": ");
}

/** @param {{job_id: string}} row */
export function keyOf(row) {
  return row.job_id;
}

/** Return the filter of an address.
 * @param {URLSearchParams} query @returns {Filter} */
export function filterOf(query) {
  const state = query.get("state") ?? "";
  return {
    state: STATES.includes(state) ? state : undefined,
    kind: query.get("kind") || undefined,
    node: query.get("node") || undefined,
    agent: query.get("agent") || undefined,
    run: query.get("run") || undefined,
  };
}

/** Return the jobs that an entry of the log names; new ones are not known yet.
 * @param {any} entry @returns {string[]} */
export function namedIn(entry) {
  if (!entry || entry.kind === "ScheduleJob") return [];
  const jobs = entry.payload?.job_id ? [entry.payload] : (entry.payload?.jobs ?? []);
  return Array.isArray(jobs) ? jobs.map((/** @type {any} */ each) => String(each?.job_id ?? "")) : [];
}

/** Whether an entry may have ended jobs that it does not name: jobs that waited for one that it names.
 * @param {any} entry */
export function endsOthers(entry) {
  return ["AbortJob", "CompleteJob", "ExpireWork"].includes(entry?.kind);
}
