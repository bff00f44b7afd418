/** Actions on many jobs: on the selected ones, or on everything that matches, read or not. */
import { html, signal } from "../../vendor.js";
import { get, Problem, send } from "../../app/api.js";
import { Act } from "../../parts/button.js";
import { ask } from "../../parts/dialog.js";
import { Bar } from "../../parts/page.js";
import { toast } from "../../parts/toast.js";
import { counted, sumOf } from "./counts.js";
import { isOpen } from "./model.js";

const BATCH = 250;
const MAX_TRIES = 30;
const PAUSE_MS = 1_000;
const REPEATED = new Set(["too_many_requests", "overloaded", "circuit_open", "no_answer"]);

/**
 * @typedef {import("./model.js").Row} Row
 * @typedef {import("./model.js").Filter} Filter
 * @typedef {{verb: string, path: string, needs: string, states: string[], byDefault: string[], isDanger: boolean, text: string}} Action
 */

/** @type {Action} */
const RETRY = {
  verb: "Retry", path: "/v1/jobs/retry", needs: "retry_jobs", states: ["failed", "aborted", "succeeded"], byDefault: ["failed"], isDanger: false,
  text: "Each is scheduled again as a new job. A job that was retried before is not retried twice.",
};
/** @type {Action} */
const ABORT = {
  verb: "Abort", path: "/v1/jobs/abort", needs: "abort_jobs", states: ["pending", "claimed", "running"], byDefault: ["pending", "claimed", "running"], isDanger: true,
  text: "Their workers stop, and jobs that wait for their success fail.",
};

/** @param {{filter: Filter, states: Record<string, number> | undefined, chosen: Map<string, Row>, clear: () => void}} props */
export function BulkBar({ filter, states, chosen, clear }) {
  if (chosen.size > 0) {
    const rows = [...chosen.values()];
    return html`<div class="jobs-bulk" role="status">
      <strong>${counted(chosen.size)} selected</strong>
      <${OfSelection} action=${RETRY} jobs=${rows.filter((row) => !isOpen(row))} clear=${clear} />
      <${OfSelection} action=${ABORT} jobs=${rows.filter(isOpen)} clear=${clear} />
      <button class="plain small" onClick=${clear}>Clear the selection</button>
    </div>`;
  }
  return html`<div class="jobs-bulk">
    <span class="quiet">Everything that matches:</span>
    ${[RETRY, ABORT].map((action) => html`<${OfFilter} action=${action} filter=${filter} states=${states} key=${action.verb} />`)}
  </div>`;
}

/** @param {{action: Action, jobs: Row[], clear: () => void}} props */
function OfSelection({ action, jobs, clear }) {
  if (jobs.length === 0) return null;
  const run = async () => {
    const isDone = await confirm(action, { jobs: jobs.length, is_exact: true }, "", (progress) => runByIds(action, jobs.map((job) => job.job_id), progress));
    if (isDone) clear();
  };
  return html`<${Act} class=${action.isDanger ? "small danger" : "small"} needs=${action.needs} run=${run}>${action.verb} ${counted(jobs.length)}…<//>`;
}

/** @param {{action: Action, filter: Filter, states: Record<string, number> | undefined}} props */
function OfFilter({ action, filter, states }) {
  const wanted = filter.state ? action.states.filter((each) => each === filter.state) : action.byDefault;
  const shown = states ? sumOf(states, wanted) : undefined;
  if (wanted.length === 0 || shown === 0) return null;
  const what = wanted.length === 1 ? wanted[0] : "open";
  const run = async () => {
    const total = await get("/v1/jobs/count", { ...filter, state: wanted.join() });
    if (total.jobs === 0) return toast("No job matches any more.");
    await confirm(action, total, `${what} `, (progress) => runByFilter(action, { ...filter, state: wanted.join() }, progress));
  };
  return html`<${Act} class=${action.isDanger ? "small danger" : "small"} needs=${action.needs} run=${run}>${action.verb} ${shown?.toLocaleString("en") ?? "all"} ${what}…<//>`;
}

/** Ask before many jobs are changed, and show how far it is.
 * @param {Action} action @param {{jobs: number, is_exact: boolean}} total @param {string} which @param {(progress: Progress) => Promise<void>} run */
async function confirm(action, { jobs: count, is_exact: isExact }, which, run) {
  const progress = new Progress(count);
  const noun = `${isExact ? "" : "at least "}${count.toLocaleString("en")} ${which}job${count === 1 ? "" : "s"}`;
  const values = await ask({
    title: `${action.verb} ${noun}?`,
    text: html`<p>${action.text}</p><${Progressing} of=${progress} />`,
    action: `${action.verb} ${counted(count)}`,
    isDanger: action.isDanger,
    fields: action === ABORT ? [{ name: "reason", label: "Reason", hint: "The op log keeps it." }] : [],
    run: async ({ reason }) => {
      progress.reason = reason ?? "";
      await run(progress);
    },
  });
  if (values) toast(progress.outcome(action));
  return values !== null;
}

/** How far an action on many jobs is. */
class Progress {
  /** @param {number} total */
  constructor(total) {
    this.total = total;
    this.changed = 0;
    this.unchanged = 0;
    this.reason = "";
    this.isStopped = false;
    this.seen = signal(0);
  }

  /** @param {any[]} items what the node answered */
  add(items) {
    const changed = items.filter((each) => each.is_new ?? each.aborted).length;
    this.changed += changed;
    this.unchanged += items.length - changed;
    this.seen.value += items.length;
  }

  /** @param {Action} action */
  outcome(action) {
    const done = `${action === RETRY ? "Retried" : "Aborted"} ${counted(this.changed)}.`;
    const not = action === RETRY ? "had been retried before" : "had ended before";
    const more = this.unchanged > 0 ? ` ${counted(this.unchanged)} ${not}.` : "";
    return done + more + (this.isStopped ? " You stopped it before the end." : "");
  }
}

/** @param {{of: Progress}} props */
function Progressing({ of }) {
  const seen = of.seen.value;
  if (seen === 0) return null;
  return html`<div class="jobs-progress" role="status">
    <${Bar} share=${seen / of.total} label="Progress" isProgress />
    <span>${seen.toLocaleString("en")} of ${of.total.toLocaleString("en")}</span>
    <button type="button" class="small" onClick=${() => (of.isStopped = true)}>Stop after this batch</button>
  </div>`;
}

/** Act on everything that matches, batch by batch until there is no more.
 * @param {Action} action @param {Record<string, any>} body @param {Progress} progress */
async function runByFilter(action, body, progress) {
  let cursor = null;
  do {
    const page = await patiently(action.path, { ...body, ...reasonOf(progress), limit: BATCH, ...(cursor ? { cursor } : {}) });
    progress.add(page.items);
    cursor = page.next;
  } while (cursor !== null && !progress.isStopped);
}

/** @param {Action} action @param {string[]} ids @param {Progress} progress */
async function runByIds(action, ids, progress) {
  for (let start = 0; start < ids.length && !progress.isStopped; start += BATCH) {
    const page = await patiently(action.path, { jobs: ids.slice(start, start + BATCH), ...reasonOf(progress) });
    progress.add(page.items);
  }
}

/** @param {Progress} progress */
function reasonOf({ reason }) {
  return reason ? { reason } : {};
}

/** Send a batch; if the node is busy or silent, send it again: both actions may be repeated.
 * @param {string} path @param {Record<string, any>} body */
async function patiently(path, body) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await send("POST", path, body);
    } catch (error) {
      if (!(error instanceof Problem) || !REPEATED.has(error.code) || tries >= MAX_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}
