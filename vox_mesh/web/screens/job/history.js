/** The attempts at a job, as the entries of the log tell them. */

/**
 * @typedef {{number: number, node: string, agent: string | null, claimed: number, started: number | null, ended: number | null,
 *   state: string, reason: string | null}} Attempt
 * Times in ms. `state`: how it ended, or `claimed` or `running`.
 */

/** Which ops end an attempt, and how, unless they say more.
 * @type {Record<string, string>} */
const ENDS = { CompleteJob: "succeeded", YieldWork: "yielded", ExpireWork: "expired", AbortJob: "aborted" };

/** Return the attempts of a job, oldest first.
 * @param {any[]} ops of this job, oldest first @param {string} state of the job @param {string | null} reason of the job @returns {Attempt[]} */
export function attemptsOf(ops, state, reason) {
  /** @type {Attempt[]} */
  const attempts = [];
  for (const op of ops.filter((each) => each.accepted)) {
    const last = attempts.at(-1);
    const open = last && last.ended === null ? last : null;
    const at = Number(String(op.hlc).split("-")[0]);
    if (op.kind === "ClaimWork" && !open) {
      attempts.push({ number: attempts.length + 1, node: op.node_id, agent: op.agent, claimed: at, started: null, ended: null, state: "claimed", reason: null });
    } else if (op.kind === "StartWork" && open) {
      open.started = at;
      open.state = "running";
    } else if (open && op.kind in ENDS) {
      open.ended = at;
      open.state = op.outcome ?? ENDS[op.kind] ?? "ended";
      open.reason = op.detail ?? null;
    }
  }
  const last = attempts.at(-1);
  if (last && last.ended !== null && ["failed", "aborted"].includes(state) && last.state === "succeeded") {
    last.state = state;
    last.reason ??= reason;
  }
  return attempts;
}

/** Return round times between two, for an axis: at most `most` of them.
 * @param {number} from @param {number} to @param {number} most @returns {number[]} */
export function ticksOf(from, to, most) {
  const steps = [1, 2, 5].flatMap((each) => [each, 10 * each, 100 * each]).concat([1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800].map((each) => each * 1_000));
  const step = steps.sort((left, right) => left - right).find((each) => (to - from) / each <= most) ?? 30 * 86_400_000;
  const ticks = [];
  for (let at = 0; at <= to - from && ticks.length <= most; at += step) ticks.push(at);
  return ticks;
}
