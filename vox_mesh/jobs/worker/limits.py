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
from vox_mesh.jobs.worker.phrase import JobPhrase
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.rhythm.bindings import WITH_BAR
from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, verdict
from vox_mesh.model.rhythm.costs import PhraseBegin, PhraseEnd, PhraseOutcome, Resources
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.score import DEFER, Score, Start
from vox_mesh.rhythm.budgets import Allowance, BudgetStanding
from vox_mesh.rhythm.phrases.reporting import end_op
from vox_mesh.rhythm.phrases.spec import PhraseParts, PhraseSpec
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


class BegunPhrase(NamedTuple):
    """The phrase of an attempt that has begun."""

    phrase_id: str
    began_ms: int


class ClaimBlock(NamedTuple):
    """The accounts for which no job is claimed, and when to check again."""

    accounts: tuple[str, ...] = ()
    is_all: bool = False
    """Whether no job is claimed at all: the budget of this worker's agent is exhausted."""
    retry_at_ms: int | None = None


class WorkerLimits:
    """The scores and budgets that limit the jobs of one worker."""

    def __init__(self, parts: PhraseParts, monotonic: Callable[[], float], agent: str | None = None) -> None:
        """`agent` is charged for the work, by default the agent of this process."""
        self._agent = agent
        self.parts = parts
        self.rhythm = parts.context
        self.budgets = parts.budgets
        self.monotonic = monotonic
        self.shares = Shares()
        self._charged_ms = -1  # the beat in which lost attempts were last charged

    @property
    def agent(self) -> str:
        """Return the agent of this worker, by default its node."""
        return self._agent or self.rhythm.agent or self.rhythm.node_id

    async def blocked_claims(self) -> ClaimBlock:
        """Return the accounts for which no job is claimed."""
        if not await self.budgets.standings():
            return ClaimBlock()
        accounts = tuple(await self.budgets.exhausted_accounts())
        is_all = await self.budgets.is_exhausted(self.agent)
        return ClaimBlock(accounts, is_all, self.budgets.next_check_ms if accounts or is_all else None)

    async def read_plan(self) -> Plan:
        """Return the tempos, as this node has read them in this bar."""
        return self.rhythm.plan

    async def of(
        self, job: Job, core: Mapping[str, Any], notebook: Notebook, begun: BegunPhrase | None = None
    ) -> AttemptLimits | None:
        """Return the limits of an attempt, or `None` if it has none; `core` is its manifest's.

        `begun` is given if the attempt has begun before.
        """
        standings = await self.budgets.standings()
        if "score" not in core and "budget" not in core and agent_of(self.agent) not in standings:
            return None
        score = Score.of_document(core["score"]) if "score" in core else None
        budget = Budget.of_document(core.get("budget", {}))
        spent: tuple[float, int | None] = (0.0, None)
        is_repeated = job.attempts > 1
        if begun is None:
            await self._charge_lost(job, is_repeated=is_repeated)
        if is_repeated:
            spent = await self.budgets.spent_on_job(job.job_id)
        return AttemptLimits(self, job, notebook, score, budget, standings, *spent, begun)

    async def begun(self, job: Job) -> BegunPhrase | None:
        """Return the phrase that the current attempt at a job has begun, or `None` if it is not recorded."""
        row = await self.budgets.begun(job.job_id, job.claim_token)
        return None if row is None else BegunPhrase(*row)

    async def _charge_lost(self, job: Job, *, is_repeated: bool) -> None:
        """Charge lost attempts: of this job if it was tried before, and others once per beat."""
        epoch_ms = self.rhythm.beat().epoch_ms
        if is_repeated or epoch_ms != self._charged_ms:
            self._charged_ms = epoch_ms
            await self.budgets.charge_lost(job.job_id, fresh=is_repeated)


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
        begun: BegunPhrase | None = None,
    ) -> None:
        self._worker_limits = worker_limits
        self._rhythm = worker_limits.rhythm
        self._job = job
        self._notebook = notebook
        self._score = score
        self._budget = budget
        self._number = job.failures + job.interruptions + 1  # one lost with its worker was a phrase, too
        begun = begun or BegunPhrase(new_key(), self._rhythm.times.now_ms)
        self._phrase_id, self._began_ms = begun
        self._own_standing = BudgetStanding(budget, first_began_ms or self._began_ms, spent_bu)
        self._subjects = [agent_of(worker_limits.agent)]
        if budget.charge_to is not None:
            self._subjects.append(account_of(budget.charge_to))
        self._budgets = {subject: standing.budget for subject, standing in self._budgets_in_force(standings)}
        self.phrase = None if score is None else self._create_phrase(score)
        self._phases = _phases_of(self.phrase, self._budgets.values())
        self._warned: set[str] = set()
        self._pause_ms = _CHECK_PAUSES_MS[0]
        self._stop_error: MeshError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._group: ProcessGroup | None = None
        self.meter = Meter(worker_limits.monotonic)
        epoch_ms = self._rhythm.beat(self._began_ms).epoch_ms
        self._share = Share(self.meter, self._subjects, epoch_ms, self._stop)

    def _create_phrase(self, score: Score) -> JobPhrase:
        job, agent, (own, *charged) = self._job, self._worker_limits.agent, self._budgets.values()
        standings = [BudgetStanding(_caps_of(each), self._began_ms, 0.0) for each in charged]
        allowance = Allowance(_caps_of(own), agent, standings=standings)
        start: Start = "downbeat" if job.binding == WITH_BAR else "now"
        spec = PhraseSpec(
            *(score, job.job_id, agent, allowance),
            start=start,
            job_id=job.job_id,
            role=job.kind,
            score_name=job.kind,
        )
        return JobPhrase(self._worker_limits.parts, spec, job, self._number, self._notebook, self._began_ms)

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
            if self.phrase is not None:
                self.phrase.outcome = PhraseOutcome.FAILED  # it does not begin, and claims nothing
            failed = AttemptResult(self._job, JobState.FAILED, why, finished_ms=self._began_ms)
            return failed._replace(may_retry=False)
        if self.phrase is not None:
            self.phrase.advance(self._began_ms)
        self._worker_limits.shares.join(self._share)
        try:
            return await self._run_recorded(attempting)
        finally:
            self._worker_limits.shares.leave(self._share)

    # --- an agent's attempt: the node only sees its begin, its renewals and its report ----------

    async def begin(self) -> str | None:
        """Record the begin of an agent's attempt. Return why it can't begin, or `None`."""
        if (why := self._exhausted_reason()) is None:
            await self._record_begin()
        return why

    async def exceeded(self, used: Resources) -> MeshError | None:
        """Return the limit that an agent's attempt has exceeded by now, or `None`."""
        self.meter.report(used)
        self._worker_limits.shares.join(self._share)
        now_ms = self._rhythm.times.now_ms
        self._check(now_ms, await self._worker_limits.budgets.standings())
        if self.phrase is not None and now_ms >= self.phrase.ends_ms:
            self._stop(self.phrase.overrun_error())
        return self._stop_error

    async def end(self, result: AttemptResult) -> AttemptResult:
        """Return the result of an agent's attempt within its limits, and record its usage."""
        result = self._apply_limits(result)
        await self._record(result)
        return result

    # --- checks ----------------------------------------------------------------------------------

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
        except PhaseOverrun as error:
            self._timeout = None  # it has ended, and the work with it
            self._stop(error)
            raise
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
        if self.phrase is not None:
            next_ms = self.phrase.advance(now_ms)
            moments += [self.phrase.ends_ms] if next_ms is None else [next_ms, self.phrase.ends_ms]
            if self.phrase.is_due:
                self._stop(self.phrase.overrun_error())
        elif self._phases:
            end_ms = timeline.after(self._began_ms, sum(self._phases.values()))
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._stop(self._cap_error())
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

    def _cap_error(self) -> MeshError:
        ((phase, beats),) = self._phases.items()
        subject = next(
            subject for subject, each in self._budgets.items() if each.phase_caps.get(phase) == beats
        )
        return OverBudget(f"the {beats:g} beats that the budget of {subject} has for {phase} are used")

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
        if self.meter.is_sampling:
            await asyncio.to_thread(self.meter.sample)
        rhythm, job = self._rhythm, self._job
        now_ms = max(self._began_ms, rhythm.times.now_ms)
        outcome, reason = _outcome_of(result), "it was stopped" if result is None else result.reason or ""
        if self.phrase is not None:
            outcome = await self.phrase.finish(outcome, reason, now_ms)
        end = PhraseEnd(
            phrase_id=self._phrase_id,
            agent_id=self._worker_limits.agent,
            task_id=job.job_id,
            job_id=job.job_id,
            outcome=outcome,
            began_ms=self._began_ms,
            ended_ms=now_ms,
            attempt=self._number,
            resources=self.meter.used,
            account=self._budget.charge_to or "",
            role=job.kind,
            **self._measured(outcome, now_ms, reason),
        )
        record = self._worker_limits.budgets.record(end)
        op = None if self.phrase is None else end_op(end, self._worker_limits.budgets.cost_of(end))
        script = Script(record, op=op, key=end.phrase_id, appendable=True)
        try:
            await rhythm.store.write(script, timeout=_RECORD_TIMEOUT_S if result is None else None)
        except MeshError as error:
            _log.error("job usage not recorded: job_id=%s: %s", job.job_id, error.line)

    def _measured(self, outcome: PhraseOutcome, now_ms: int, reason: str) -> dict[str, Any]:
        """Return the measured part of the recorded end."""
        if (phrase := self.phrase) is None:
            beats = self._rhythm.timeline.beats_between(self._began_ms, now_ms)
            useful_ms = now_ms if outcome is PhraseOutcome.DONE else None
            return {"beats": {_WORK: beats}, "first_useful_ms": useful_ms, "note": reason}
        return {
            "beats": phrase.used,
            "waited": phrase.waited,
            "overruns": phrase.overruns,
            "first_useful_ms": phrase.first_useful_ms,
            "note": phrase.note,
        }


def _caps_of(budget: Budget) -> Budget:
    """Return the caps of a budget: its total is checked by the worker."""
    return budget.model_copy(update={"max_bu": None, "hard_end": None})


def _phases_of(phrase: JobPhrase | None, budgets: Collection[Budget]) -> Mapping[str, float]:
    """Return the beats of each phase, empty if neither a score nor a cap limits them."""
    if phrase is not None:
        return phrase.beats
    caps = [each.phase_caps[_WORK] for each in budgets if _WORK in each.phase_caps]
    return {_WORK: min(caps)} if caps else {}


def _hard_end_reason(subject: str, budget: Budget) -> str:
    return f"the budget of {subject} has its hard end: {budget.hard_end}"


def _outcome_of(result: AttemptResult | None) -> PhraseOutcome:
    if result is None or result.is_requeued:
        return PhraseOutcome.DEFERRED
    return PhraseOutcome.DONE if result.state is JobState.SUCCEEDED else PhraseOutcome.FAILED
