"""The limits of one attempt: the score of its job, and the budgets it is charged to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final

from vox_mesh.errors import MeshError, OverBudget, PhaseOverrun
from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.worker.attempt_result import AttemptEnd, AttemptResult
from vox_mesh.jobs.worker.limit_services import (
    NO_BUDGET,
    BegunPhrase,
    LimitServices,
    Work,
    caps_of,
    hard_end_reason,
    outcome_of,
    spend_error,
)
from vox_mesh.jobs.worker.limit_watch import FIRST_CHECK_MS
from vox_mesh.jobs.worker.metering import Meter, Share
from vox_mesh.jobs.worker.phrase import JobPhrase
from vox_mesh.model.base.ulid import attempt_ulid
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.rhythm.bindings import WITH_BAR
from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, verdict
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.costs import NOTHING, PhraseBegin, PhraseEnd, PhraseOutcome, Resources
from vox_mesh.model.rhythm.policy import PHASES
from vox_mesh.model.rhythm.score import DEFER, Score, Start
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.rhythm.budgets import Allowance, BudgetStanding
from vox_mesh.rhythm.phrases.reporting import end_document, end_op, join_remarks
from vox_mesh.rhythm.phrases.spec import PhraseSpec
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.script import Script

_log = logging.getLogger(__name__)

_MAX_PAUSE_MS: Final = 500  # of checks; the first one is shorter, and each is twice as long as the one before
_NO_BEATS: Final[Mapping[str, float]] = dict.fromkeys(PHASES, 0)
_RECORD_TIMEOUT_S: Final = 2.0
_JOB: Final = "the job"
_NO_BUDGETS: Final = {_JOB: NO_BUDGET}
_LOST: Final = "its claim was lost"
_WORK: Final = "work"
_EXHAUSTED: Final = (Verdict.NO_CLAIMS, Verdict.STOP)


class AttemptLimits:
    """The limits of one attempt, which is one phrase."""

    def __init__(
        self,
        worker_limits: LimitServices,
        job: Job,
        notebook: Notebook,
        meter: Meter,
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
        self._begun = begun
        self._began_ms = self._rhythm.times.now_ms if begun is None else begun.began_ms
        self._own_standing = BudgetStanding(budget, first_began_ms or self._began_ms, spent_bu)
        self._subjects = [agent_of(worker_limits.agent)]
        self._budgets = _NO_BUDGETS
        if budget is not NO_BUDGET or standings:
            if budget.charge_to is not None:
                self._subjects.append(account_of(budget.charge_to))
            in_force = self._budgets_in_force(standings)
            self._budgets = {subject: standing.budget for subject, standing in in_force}
        self._phrase: JobPhrase | None = None
        self._has_ended = False
        self._warned: set[str] = set()
        self._pause_ms = FIRST_CHECK_MS
        self._stop_error: MeshError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._group: ProcessGroup | None = None
        self.meter = meter
        self._share: Share | None = None

    @property
    def _phrase_id(self) -> str:
        """Return the id of the phrase; a node of an earlier version has drawn it."""
        if self._begun is not None:
            return self._begun.phrase_id
        return attempt_ulid(self._job.job_id, self._job.claim_token)

    @property
    def phrase(self) -> JobPhrase | None:
        """Return the phrase of the attempt, or `None` without a score.

        It is created when it is first used: most attempts end before that.
        """
        if self._phrase is None and self._score is not None:
            self._phrase = self._create_phrase(self._score)
            if self._has_ended:
                self._phrase.outcome = PhraseOutcome.FAILED  # too late: it claims nothing
            else:
                self._phrase.advance(self._began_ms)
        return self._phrase

    def _create_phrase(self, score: Score) -> JobPhrase:
        job, agent, (own, *charged) = self._job, self._worker_limits.agent, self._budgets.values()
        standings = [BudgetStanding(caps_of(each), self._began_ms, 0.0) for each in charged]
        allowance = Allowance(caps_of(own), agent, standings=standings)
        start: Start = "downbeat" if job.binding == WITH_BAR else "now"
        job_id, kind = job.job_id, job.kind
        spec = PhraseSpec(
            score, job_id, agent, allowance, start=start, job_id=job_id, role=kind, score_name=kind
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
        phases = self._phases
        return sum(phases.values()) if phases else None

    @property
    def _phases(self) -> Mapping[str, float]:
        """Return the beats of each phase, empty if neither a score nor a cap limits them."""
        if self.phrase is not None:
            return self.phrase.beats
        caps = [each.phase_caps[_WORK] for each in self._budgets.values() if _WORK in each.phase_caps]
        return {_WORK: min(caps)} if caps else {}

    def covers(self, error: BaseException) -> bool:
        """Return whether a fallback has covered an error: `covering_result` is the job's result."""
        return self._phrase is not None and self._phrase.covers(error)

    @property
    def covering_result(self) -> Any:
        """Return the result of the fallback."""
        return None if self._phrase is None else self._phrase.result

    def begin_phrase(self) -> None:
        """Create the phrase and claim that it has begun, unless that was done before."""
        _ = self.phrase

    # --- enforcing -------------------------------------------------------------------------------

    async def enforce(self, attempting: Coroutine[Any, Any, AttemptResult]) -> AttemptResult:
        """Run an attempt within its limits, record its usage, and return its result."""
        if (why := self._exhausted_reason()) is not None:
            attempting.close()
            self._has_ended = True
            failed = AttemptResult(self._job, JobState.FAILED, why, finished_ms=self._began_ms)
            return failed._replace(may_retry=False)
        worker_limits = self._worker_limits
        worker_limits.watch.add(self, self._began_ms)
        if self._score is not None:
            worker_limits.parts.status.expect()
        if self._budgets is not _NO_BUDGETS and any(each.per_beat for each in self._budgets.values()):
            self._join_shares()
        try:
            result = self._apply_limits(await attempting)
            return result._replace(end=await self._finish(result))
        except asyncio.CancelledError:
            attempting.close()  # it may not have been started
            await to_the_end(asyncio.create_task(self._record_stopped(), name="vox-mesh-phrase-end"))
            raise
        finally:
            worker_limits.watch.remove(self)
            if self._share is not None:
                worker_limits.shares.leave(self._share)

    def _join_shares(self) -> Share:
        if self._share is None:
            epoch_ms = self._rhythm.beat(self._began_ms).epoch_ms
            self._share = Share(self.meter, self._subjects, epoch_ms, self._stop)
            self._worker_limits.shares.join(self._share)
        return self._share

    # --- an agent's attempt: the node only sees its begin, its renewals and its report ----------

    async def begin(self) -> str | None:
        """Record the begin of an agent's attempt. Return why it can't begin, or `None`."""
        if (why := self._exhausted_reason()) is None:
            await self._record_begin()
        return why

    async def exceeded(self, used: Usage) -> MeshError | None:
        """Return the limit that an agent's attempt has exceeded by now, or `None`."""
        self.meter.report(used)
        now_ms = self._rhythm.times.now_ms
        self.check(now_ms, await self._worker_limits.budgets.standings())
        if self.phrase is not None and now_ms >= self.phrase.ends_ms:
            self._stop(self.phrase.overrun_error())
        return self._stop_error

    async def end(self, result: AttemptResult) -> AttemptResult:
        """Return the result of an agent's attempt within its limits, with its end."""
        result = self._apply_limits(result)._replace(usage=self.meter.used)
        return result._replace(end=await self._finish(result))

    async def _record_begin(self) -> None:
        """Record the start of an agent's phrase: another request, or another node, goes on from it."""
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

    # --- checks ----------------------------------------------------------------------------------

    def _exhausted_reason(self) -> str | None:
        """Return why the attempt can't start because earlier ones used up its limits, or `None`."""
        budget, score = self._budget, self._score
        if score is not None and self._number > (most := score.retry.max_phrases):
            return f"all phrases of its score ({most}) were played before"
        if budget is NO_BUDGET:
            return None
        if verdict(self._own_standing.bu, budget) in _EXHAUSTED:
            return f"{self._own_standing.bu:.2f} of {budget.max_bu:g} beats of its budget were used before"
        if self._own_standing.verdict(self._rhythm.timeline, self._began_ms) is Verdict.STOP:
            return hard_end_reason(_JOB, budget)
        return None

    async def within(self, work: Work) -> AttemptResult:
        """Run the work; raise the limit's error if it is stopped."""
        self._timeout = limit = asyncio.timeout(None)
        try:
            async with limit:
                try:
                    if self._stop_error is not None:
                        raise self._stop_error
                    return await work()
                finally:
                    self._timeout = None  # it has ended, and the work with it
        except PhaseOverrun as error:
            self._stop(error)
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            if self._stop_error is None and self._phrase is not None:  # its phrase is over
                self._stop(self._phrase.overrun_error())
            raise self._stop_error or OverBudget("it was cut off") from None

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
        else:
            self._cancel_work()

    def _cancel_work(self) -> None:
        if (timeout := self._timeout) is not None and not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())

    def stop_unchecked(self, error: Exception) -> None:
        """Stop the attempt, because its limits can't be checked."""
        _log.error("job limits not enforceable: job_id=%s: %r", self._job.job_id, error)
        self._stop(OverBudget("its worker could not keep its bounds"))

    def check(self, now_ms: int, standings: Mapping[str, BudgetStanding]) -> int:
        """Stop the attempt if a limit is exceeded. Return the time of the next check, in ms."""
        share, timeline = self._join_shares(), self._rhythm.timeline
        beat = timeline.beat_at(now_ms)
        moments = [beat.ends_ms]
        if (phrase := self.phrase) is not None:
            next_ms = phrase.advance(now_ms)
            moments += [phrase.ends_ms] if next_ms is None else [next_ms, phrase.ends_ms]
            if phrase.is_due and phrase.is_command:
                self._stop(phrase.overrun_error())
            elif phrase.is_due:
                self._cancel_work()
        elif phases := self._phases:
            end_ms = timeline.after(self._began_ms, sum(phases.values()))
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._stop(self._cap_error(phases))
        # The first check in a beat covers the previous beat, or several if none was checked in between.
        beats = max(1.0, timeline.beats_between(share.epoch_ms, beat.epoch_ms))
        spent = self._worker_limits.budgets.tokens.bill(self.meter.tokens).amounts()
        for subject, standing in self._budgets_in_force(standings):
            moments += self._check_budget(subject, standing, now_ms)
            if (error := spend_error(subject, standing, spent)) is not None:
                self._stop(error)
            self._check_beat_ceiling(share, subject, standing.budget, beats)
        share.count_from(beat.epoch_ms)
        moments.append(now_ms + self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, _MAX_PAUSE_MS)
        return min(each for each in moments if each > now_ms)

    def _check_beat_ceiling(self, own: Share, subject: str, budget: Budget, beats: float) -> None:
        """Check the ceiling per beat; that of an agent or account covers all its attempts on this node."""
        if subject == _JOB:
            excess, share = budget.over_in_beat(own.used, beats), own
        elif (found := self._worker_limits.shares.excess(own, subject, budget, beats)) is not None:
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
                self._stop(OverBudget(hard_end_reason(subject, budget)))
        if budget.stop_bu is not None:
            moments.append(timeline.after(self._began_ms, max(0.0, budget.stop_bu - standing.bu)) + 1)
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

    def _cap_error(self, phases: Mapping[str, float]) -> MeshError:
        ((phase, beats),) = phases.items()
        subject = next(name for name, each in self._budgets.items() if each.phase_caps.get(phase) == beats)
        return OverBudget(f"the {beats:g} beats that the budget of {subject} has for {phase} are used")

    # --- recording -------------------------------------------------------------------------------

    def _apply_limits(self, result: AttemptResult) -> AttemptResult:
        """Return the result as failed if a limit stopped it, and without a retry if none is left."""
        if self._stop_error is not None:
            result = result.cut_off(self._stop_error.line)
        may_retry = result.may_retry and not isinstance(self._stop_error, OverBudget)
        if self._score is not None:
            defers = DEFER in self._score.escalation.on_overrun or self._stop_error is None
            may_retry = may_retry and defers and self._number < self._score.retry.max_phrases
        if verdict(self._own_standing.bu + self.beats, self._budget) in _EXHAUSTED:
            may_retry = False
        return result._replace(may_retry=may_retry)

    async def _finish(self, result: AttemptResult | None) -> AttemptEnd:
        """Return the end of the attempt and claim it; `result` is `None` if it was stopped."""
        if self.meter.is_sampling:
            await asyncio.to_thread(self.meter.sample)
            result = result and result._replace(usage=self.meter.used)
        if self._phrase is not None:
            await self._phrase.settle()
        # Nothing is awaited from here on: the end, its bar and its claim have one time.
        ended_ms = max(self._began_ms, self._rhythm.times.now_ms)
        outcome = outcome_of(result)
        if outcome is PhraseOutcome.DONE and self._is_brief(ended_ms):
            self._has_ended = True
            return self._brief_end(ended_ms, NOTHING if result is None else result.usage)
        reason = "it was stopped" if result is None else result.reason or ""
        used = self.meter.used if result is None else result.usage
        end = self._make_end(used, ended_ms, *self._measure(outcome, reason, ended_ms))
        is_logged = self._score is not None or self._budget.max_bu is not None
        logged = end_document(end, self._worker_limits.budgets.cost_of(end)) if is_logged else None
        return AttemptEnd(lambda: end, logged, self._began_ms, ended_ms)

    def _make_end(
        self, used: Resources, ended_ms: int, outcome: PhraseOutcome, measured: dict[str, Any]
    ) -> PhraseEnd:
        job = self._job
        return PhraseEnd(
            phrase_id=self._phrase_id,
            agent_id=self._worker_limits.agent,
            task_id=job.job_id,
            job_id=job.job_id,
            outcome=outcome,
            began_ms=self._began_ms,
            ended_ms=ended_ms,
            attempt=self._number,
            resources=used,
            account=self._budget.charge_to or "",
            role=job.kind,
            **measured,
        )

    def _is_brief(self, ended_ms: int) -> bool:
        """Return whether an attempt that succeeds is only counted: its claims would all be in one beat."""
        return (
            self._phrase is None
            and self._score is not None
            and self._number == 1
            and self._budgets is _NO_BUDGETS
            and not self.meter.has_reports
            and self._rhythm.beat(ended_ms).epoch_ms <= self._began_ms
        )

    def _measure(
        self, outcome: PhraseOutcome, reason: str, ended_ms: int
    ) -> tuple[PhraseOutcome, dict[str, Any]]:
        """Return the outcome and the measured part of the end; the end of a phrase is claimed."""
        phrase, self._has_ended = self.phrase, True
        if phrase is None:
            beats = {_WORK: self._rhythm.timeline.beats_between(self._began_ms, ended_ms)}
            useful_ms = ended_ms if outcome is PhraseOutcome.DONE else None
            return outcome, {"beats": beats, "first_useful_ms": useful_ms, "note": join_remarks([reason])}
        outcome = phrase.finish(outcome, reason, ended_ms)
        return outcome, {
            "beats": phrase.used,
            "waited": phrase.waited,
            "overruns": phrase.overruns,
            "first_useful_ms": phrase.first_useful_ms,
            "note": phrase.note,
        }

    def _brief_end(self, ended_ms: int, used: Resources) -> AttemptEnd:
        """Return the end of an attempt that is only counted. It is made fast: short jobs are many."""
        job, worker_limits, began_ms = self._job, self._worker_limits, self._began_ms
        bu = (ended_ms - began_ms) / self._rhythm.beat(ended_ms).beat_ms
        cost = worker_limits.budgets.rates.total({job.kind: bu}, used)
        beats = {**_NO_BEATS, PHASES[0]: bu or 0}
        logged = {
            "phrase": self._phrase_id,
            "agent": worker_limits.agent,
            "attempt": self._number,
            "outcome": PhraseOutcome.DONE.value,
            "beats": beats,
            "waited": {},
            "overruns": 0,
            "cost": cost or 0,
            "began_ms": began_ms,
            "ended_ms": ended_ms,
            "note": "",
        }
        measured = {"beats": beats, "first_useful_ms": ended_ms}
        make = partial(self._make_end, used, ended_ms, PhraseOutcome.DONE, measured)
        return AttemptEnd(make, logged, began_ms, ended_ms, is_brief=True)

    async def _record_stopped(self) -> None:
        """Record the end of an attempt that was stopped: its job was released, or its claim lost."""
        await self._record(await self._finish(None))

    async def record_refused(self, refused: AttemptEnd) -> None:
        """Record the end of an attempt whose result was not accepted, and claim that it failed."""
        self.claim_failure(_LOST)
        await self._record(refused.failed(_LOST))

    def claim_failure(self, reason: str) -> None:
        """Claim that the job is not done, although the attempt has succeeded."""
        if self._score is not None:
            agent, notes = self._worker_limits.agent, join_remarks([reason])
            self._worker_limits.parts.status.claim(agent, self._job.job_id, ClaimState.FAILED, notes=notes)

    async def _record(self, ended: AttemptEnd) -> None:
        """Record an end on its own, as there is no result to record it with."""
        end, budgets = ended.make(), self._worker_limits.budgets
        op = None if ended.logged is None else end_op(end, budgets.cost_of(end))
        script = Script(*budgets.record_late(end), op=op, key=end.phrase_id, appendable=True)
        try:
            await self._rhythm.store.write(script, timeout=_RECORD_TIMEOUT_S)
        except MeshError as error:
            _log.error("job usage not recorded: job_id=%s: %s", self._job.job_id, error.line)
