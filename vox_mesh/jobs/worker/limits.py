"""Limits: a worker enforces the score of a job and the budgets it is charged to.

Most jobs have neither; they are not measured or recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import MeshError, OverBudget, PhaseOverrun
from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.worker.finisher import AttemptResult
from vox_mesh.jobs.worker.metering import Meter, Share, Shares
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, capped, verdict
from vox_mesh.model.rhythm.costs import PhraseBegin, PhraseEnd, PhraseOutcome
from vox_mesh.model.rhythm.score import DEFER, Score
from vox_mesh.rhythm.budgets import Budgets, BudgetStanding
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.script import Script, new_key

_log = logging.getLogger(__name__)

_CHECK_PAUSES_MS: Final = (50, 500)  # doubles from the first to the second
_RECORD_TIMEOUT_S: Final = 2.0
_JOB: Final = "the job"
_WORK: Final = "work"
_EXHAUSTED: Final = (Verdict.NO_CLAIMS, Verdict.STOP)

Work = Callable[[], Awaitable[AttemptResult]]
"""The work of an attempt: it runs a handler or a command."""


class ClaimBlock(NamedTuple):
    """The accounts for which no job is claimed, and when to check again."""

    accounts: tuple[str, ...] = ()
    is_all: bool = False
    """Whether no job is claimed at all: the budget of this worker's agent is exhausted."""
    retry_at_ms: int | None = None


class WorkerLimits:
    """The scores and budgets that limit the jobs of one worker."""

    def __init__(self, rhythm: RhythmContext, budgets: Budgets, monotonic: Callable[[], float]) -> None:
        self.rhythm = rhythm
        self.budgets = budgets
        self.monotonic = monotonic
        self.shares = Shares()

    @property
    def agent(self) -> str:
        """Return the agent of this worker, by default its node."""
        return self.rhythm.agent or self.rhythm.node_id

    async def blocked_claims(self) -> ClaimBlock:
        """Return the accounts for which no job is claimed."""
        if not await self.budgets.standings():
            return ClaimBlock()
        accounts = tuple(await self.budgets.exhausted_accounts())
        is_all = await self.budgets.is_exhausted(self.agent)
        return ClaimBlock(accounts, is_all, self.budgets.next_check_ms if accounts or is_all else None)

    async def of(self, job: Job, core: Mapping[str, Any], notebook: Notebook) -> AttemptLimits | None:
        """Return the limits of an attempt, or `None` if it has none; `core` is its manifest's."""
        standings = await self.budgets.standings()
        if "score" not in core and "budget" not in core and agent_of(self.agent) not in standings:
            return None
        score = Score.of_document(core["score"]) if "score" in core else None
        budget = Budget.of_document(core.get("budget", {}))
        spent: tuple[float, int | None] = (0.0, None)
        is_repeated = job.attempts > 1
        await self.budgets.charge_lost(job.job_id, fresh=is_repeated)
        if is_repeated:
            spent = await self.budgets.spent_on_job(job.job_id)
        return AttemptLimits(self, job, notebook, score, budget, standings, *spent)


class AttemptLimits:
    """The limits of one attempt, which is one phrase."""

    def __init__(
        self,
        worker_limits: WorkerLimits,
        job: Job,
        notebook: Notebook,
        score: Score | None,
        budget: Budget,
        standings: Mapping[str, BudgetStanding],
        spent_bu: float,
        first_began_ms: int | None,
    ) -> None:
        self._worker_limits = worker_limits
        self._rhythm = worker_limits.rhythm
        self._job = job
        self._notebook = notebook
        self._score = score
        self._budget = budget
        self._number = job.failures + job.interruptions + 1  # one lost with its worker was a phrase, too
        self._phrase_id: Final = new_key()
        self._began_ms = self._rhythm.times.now_ms
        self._own_standing = BudgetStanding(budget, first_began_ms or self._began_ms, spent_bu)
        self._subjects = [agent_of(worker_limits.agent)]
        if budget.charge_to is not None:
            self._subjects.append(account_of(budget.charge_to))
        self._budgets = {subject: standing.budget for subject, standing in self._budgets_in_force(standings)}
        self._phases = _phases_of(score, self._budgets.values(), self._number)
        self._warned: set[str] = set()
        self._pause_ms = _CHECK_PAUSES_MS[0]
        self._stop_error: MeshError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._group: ProcessGroup | None = None
        self.meter = Meter(worker_limits.monotonic)
        epoch_ms = self._rhythm.beat(self._began_ms).epoch_ms
        self._share = Share(self.meter, self._subjects, epoch_ms, self._stop)

    # --- for handlers ----------------------------------------------------------------------------

    @property
    def beats(self) -> float:
        """Return the beats used so far."""
        now_ms = self._rhythm.times.now_ms
        return max(0.0, self._rhythm.timeline.beats_between(self._began_ms, now_ms))

    @property
    def phrase_beats(self) -> float | None:
        """Return the beats of the phrase, or `None` if they are not limited."""
        return sum(self._phases.values()) if self._phases else None

    # --- enforcing -------------------------------------------------------------------------------

    async def enforce(self, attempting: Coroutine[Any, Any, AttemptResult]) -> AttemptResult:
        """Run an attempt within its limits, record its usage, and return its result."""
        if (why := self._exhausted_reason()) is not None:
            attempting.close()
            failed = AttemptResult(self._job, JobState.FAILED, why, finished_ms=self._began_ms)
            return failed._replace(may_retry=False)
        self._worker_limits.shares.join(self._share)
        try:
            return await self._run_recorded(attempting)
        finally:
            self._worker_limits.shares.leave(self._share)

    def _exhausted_reason(self) -> str | None:
        """Return why the attempt can't start because earlier ones used up its limits, or `None`."""
        budget, score = self._budget, self._score
        if score is not None and self._number > (most := score.retry.max_phrases):
            return f"all phrases of its score ({most}) were played before"
        if verdict(self._own_standing.bu, budget) in _EXHAUSTED:
            return f"{self._own_standing.bu:.2f} of {budget.max_bu:g} beats of its budget were used before"
        if self._own_standing.verdict(self._rhythm.timeline, self._began_ms) is Verdict.STOP:
            return _hard_end_reason(_JOB, budget)
        return None

    async def _run_recorded(self, attempting: Coroutine[Any, Any, AttemptResult]) -> AttemptResult:
        watching = asyncio.create_task(self._watch(), name="vox-mesh-bounds")
        try:
            await self._record_begin()
            result = await attempting
        except asyncio.CancelledError:
            attempting.close()  # it may not have been started
            watching.cancel()
            await to_the_end(asyncio.create_task(self._record(None), name="vox-mesh-phrase-end"))
            raise
        finally:
            watching.cancel()
        result = self._apply_limits(result)
        await self._record(result)
        return result

    async def within(self, work: Work) -> AttemptResult:
        """Run the work; raise the limit's error if it is stopped."""
        self._timeout = limit = asyncio.timeout(None)
        try:
            async with limit:
                if self._stop_error is not None:
                    raise self._stop_error
                return await work()
        except TimeoutError:
            if self._stop_error is None or not limit.expired():
                raise
            raise self._stop_error from None

    def watch_processes(self, group: ProcessGroup) -> None:
        """Meter the processes of a command, and stop them when a limit is exceeded."""
        self._group = group
        self.meter.watch(group)

    def _stop(self, why: MeshError) -> None:
        if self._stop_error is not None or (self._group is not None and self._group.has_ended):
            return
        self._stop_error = why
        _log.warning("job limit exceeded: job_id=%s: %s", self._job.job_id, why.line)
        self._notebook.log("log", f"cut off: {why.line}\n")
        if self._group is not None:
            self._group.end()  # keeps its output
        elif self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def _watch(self) -> None:
        try:
            await self._watch_limits()
        except Exception:
            _log.exception("job limits not enforceable: job_id=%s", self._job.job_id)
            self._stop(OverBudget("its worker could not keep its bounds"))

    async def _watch_limits(self) -> None:
        times = self._rhythm.times
        while self._stop_error is None:
            if self.meter.is_sampling:
                await asyncio.to_thread(self.meter.sample)
            standings = await self._worker_limits.budgets.standings()
            now_ms = times.now_ms
            next_ms = self._check(now_ms, standings)
            await times.until(min(next_ms, now_ms + self._pause_ms))
            self._pause_ms = min(2 * self._pause_ms, _CHECK_PAUSES_MS[1])

    def _check(self, now_ms: int, standings: Mapping[str, BudgetStanding]) -> int:
        """Stop the attempt if a limit is exceeded. Return the time of the next check, in ms."""
        timeline = self._rhythm.timeline
        beat = timeline.beat_at(now_ms)
        moments = [beat.ends_ms]
        if self._phases:
            end_ms = timeline.after(self._began_ms, sum(self._phases.values()))
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._stop(self._overrun_error())
        # The first check in a beat covers the previous beat, or several if none was checked in between.
        beats = max(1.0, timeline.beats_between(self._share.epoch_ms, beat.epoch_ms))
        for subject, standing in self._budgets_in_force(standings):
            moments += self._check_budget(subject, standing, now_ms)
            self._check_beat_ceiling(subject, standing.budget, beats)
        self._share.count_from(beat.epoch_ms)
        return min(each for each in moments if each > now_ms)

    def _check_beat_ceiling(self, subject: str, budget: Budget, beats: float) -> None:
        """Check the ceiling per beat; that of an agent or account covers all its attempts on this node."""
        if subject == _JOB:
            excess, share = budget.over_in_beat(self._share.used, beats), self._share
        elif (found := self._worker_limits.shares.excess(self._share, subject, budget, beats)) is not None:
            excess, share = found
        else:
            return
        if excess is not None:
            share.stop(OverBudget(f"the budget of {subject} is exceeded: {excess}"))

    def _budgets_in_force(self, standings: Mapping[str, BudgetStanding]) -> list[tuple[str, BudgetStanding]]:
        charged = [(each, standings[each]) for each in self._subjects if each in standings]
        return [(_JOB, self._own_standing), *charged]

    def _check_budget(self, subject: str, standing: BudgetStanding, now_ms: int) -> list[int]:
        budget, timeline, moments = standing.budget, self._rhythm.timeline, []
        if (end_ms := budget.hard_end_ms(timeline, standing.since_ms)) is not None:
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._stop(OverBudget(_hard_end_reason(subject, budget)))
        if budget.max_bu is not None:
            stop_bu = budget.thresholds.work * budget.max_bu - standing.bu
            moments.append(timeline.after(self._began_ms, max(0.0, stop_bu)) + 1)
            self._check_units(subject, budget, standing.bu + self.beats)
        return moments

    def _check_units(self, subject: str, budget: Budget, bu: float) -> None:
        outcome = verdict(bu, budget)
        line = f"{bu:.2f} of {budget.max_bu:g} beats of the budget of {subject} are used"
        if outcome is Verdict.STOP:
            self._stop(OverBudget(line))
        elif outcome is not Verdict.OK and subject not in self._warned:
            self._warned.add(subject)
            _log.warning("job budget nearly used: job_id=%s: %s", self._job.job_id, line)
            self._notebook.log("log", f"{line}\n")

    def _overrun_error(self) -> MeshError:
        phase, beats = list(self._phases)[-1], sum(self._phases.values())
        if self._score is None:
            subject = next(
                subject for subject, each in self._budgets.items() if each.phase_caps.get(phase) == beats
            )
            return OverBudget(f"the {beats:g} beats that the budget of {subject} has for {phase} are used")
        return PhaseOverrun(f"its phrase of {beats:g} beats is over", phase=phase)

    # --- recording -------------------------------------------------------------------------------

    async def _record_begin(self) -> None:
        """Record the start of the phrase, so that another node can charge it if this worker dies."""
        job = self._job
        begin = PhraseBegin(
            phrase_id=self._phrase_id,
            job_id=job.job_id,
            claim_token=job.claim_token,
            agent_id=self._worker_limits.agent,
            account=self._budget.charge_to or "",
            role=job.kind,
            attempt=self._number,
            began_ms=self._began_ms,
        )
        script = Script(self._worker_limits.budgets.record_begin(begin), appendable=True)
        try:
            await self._rhythm.store.write(script, timeout=_RECORD_TIMEOUT_S)
        except MeshError as error:
            _log.warning("phrase start not recorded: job_id=%s: %s", job.job_id, error.line)

    def _apply_limits(self, result: AttemptResult) -> AttemptResult:
        """Return the result as failed if a limit stopped it, and without a retry if none is left."""
        if self._stop_error is not None:
            result = result._replace(state=JobState.FAILED, reason=self._stop_error.line, delay_ms=None)
        may_retry = result.may_retry and not isinstance(self._stop_error, OverBudget)
        if self._score is not None:
            defers = DEFER in self._score.escalation.on_overrun or self._stop_error is None
            may_retry = may_retry and defers and self._number < self._score.retry.max_phrases
        if verdict(self._own_standing.bu + self.beats, self._budget) in _EXHAUSTED:
            may_retry = False
        return result._replace(may_retry=may_retry)

    async def _record(self, result: AttemptResult | None) -> None:
        """Record the usage; `result` is `None` if the job was released or its claim lost."""
        await asyncio.to_thread(self.meter.sample)
        rhythm, job = self._rhythm, self._job
        now_ms = max(self._began_ms, rhythm.times.now_ms)
        is_done = result is not None and result.state is JobState.SUCCEEDED
        end = PhraseEnd(
            phrase_id=self._phrase_id,
            agent_id=self._worker_limits.agent,
            task_id=job.job_id,
            job_id=job.job_id,
            outcome=_outcome_of(result),
            began_ms=self._began_ms,
            ended_ms=now_ms,
            beats=_by_phase(self._phases, rhythm.timeline.beats_between(self._began_ms, now_ms)),
            attempt=self._number,
            overruns=int(isinstance(self._stop_error, PhaseOverrun)),
            first_useful_ms=now_ms if is_done else None,
            resources=self.meter.used,
            account=self._budget.charge_to or "",
            role=job.kind,
            note="it was stopped" if result is None else result.reason or "",
        )
        script = Script(self._worker_limits.budgets.record(end), appendable=True)
        try:
            await rhythm.store.write(script, timeout=_RECORD_TIMEOUT_S if result is None else None)
        except MeshError as error:
            _log.error("job usage not recorded: job_id=%s: %s", job.job_id, error.line)


def _phases_of(score: Score | None, budgets: Collection[Budget], number: int) -> dict[str, float]:
    """Return the beats of each phase, empty if neither a score nor a cap limits them."""
    if score is not None:
        return capped(score.attempt(number), budgets)
    caps = [each.phase_caps[_WORK] for each in budgets if _WORK in each.phase_caps]
    return {_WORK: min(caps)} if caps else {}


def _hard_end_reason(subject: str, budget: Budget) -> str:
    return f"the budget of {subject} has its hard end: {budget.hard_end}"


def _by_phase(phases: Mapping[str, float], beats: float) -> dict[str, float]:
    """Distribute used beats over the phases in order; the last one gets the excess."""
    used: dict[str, float] = {}
    for phase, limit in phases.items():
        used[phase] = min(limit, beats)
        beats -= used[phase]
    last = next(reversed(used), _WORK)
    return used | {last: used.get(last, 0.0) + beats}


def _outcome_of(result: AttemptResult | None) -> PhraseOutcome:
    if result is None or result.is_requeued:
        return PhraseOutcome.DEFERRED
    return PhraseOutcome.DONE if result.state is JobState.SUCCEEDED else PhraseOutcome.FAILED
