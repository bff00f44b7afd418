"""Bounds: a job's score and the budgets it is charged to are kept by its worker, whatever the work does.

Most jobs have neither, and nothing is measured or recorded of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vox_mesh.errors import MeshError, OverBudget, PhaseOverrun
from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.jobs.worker.completing import Ended
from vox_mesh.jobs.worker.metering import Meter, Share, Shares
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, capped, verdict
from vox_mesh.model.rhythm.ends import PhraseBegin, PhraseEnd, PhraseOutcome
from vox_mesh.model.rhythm.score import DEFER, Score
from vox_mesh.rhythm.budgets.budgets import Budgets, BudgetStanding
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.script import Script, new_key

if TYPE_CHECKING:
    from vox_mesh.jobs.worker.attempt import Work
    from vox_mesh.jobs.worker.context import JobContext

_log = logging.getLogger(__name__)

_LOOKS_MS: Final = (50, 500)  # from often, as many are short, to now and then
_RECORD_S: Final = 2.0
_OWN: Final = "the job"
_WORK: Final = "work"
_SPENT: Final = (Verdict.NO_CLAIMS, Verdict.STOP)


class Shut(NamedTuple):
    """For whom nothing new is begun, and when to look again, if nothing else happens before."""

    accounts: tuple[str, ...] = ()
    is_all: bool = False
    """Nothing at all: the agent of this worker has spent what it may."""
    again_ms: int | None = None


class WorkerLimits:
    """Knows what bounds the work of one worker."""

    def __init__(self, ground: RhythmContext, budgets: Budgets, monotonic: Callable[[], float]) -> None:
        self.ground = ground
        self.budgets = budgets
        self.monotonic = monotonic
        self.shares = Shares()

    @property
    def agent(self) -> str:
        """Who works here."""
        return self.ground.agent or self.ground.node_id

    async def shut(self) -> Shut:
        """For whom nothing new is begun."""
        if not await self.budgets.standings():
            return Shut()
        accounts = tuple(await self.budgets.exhausted_accounts())
        is_all = await self.budgets.is_exhausted(self.agent)
        return Shut(accounts, is_all, self.budgets.next_check_ms if accounts or is_all else None)

    async def of(self, context: JobContext) -> AttemptLimits | None:
        """What bounds an attempt, if anything does."""
        core, job = context.core, context.job
        standings = await self.budgets.standings()
        if "score" not in core and "budget" not in core and agent_of(self.agent) not in standings:
            return None
        score = Score.of_document(core["score"]) if "score" in core else None
        budget = Budget.of_document(core.get("budget", {}))
        spent: tuple[float, int | None] = (0.0, None)
        had_others = job.attempts > 1
        await self.budgets.charge_lost(job.job_id, fresh=had_others)
        if had_others:
            spent = await self.budgets.spent_on_job(job.job_id)
        return AttemptLimits(self, context, score, budget, standings, *spent)


class AttemptLimits:
    """What bounds one attempt. The attempt is one phrase."""

    def __init__(
        self,
        bounds: WorkerLimits,
        context: JobContext,
        score: Score | None,
        budget: Budget,
        standings: Mapping[str, BudgetStanding],
        spent_bu: float,
        first_began_ms: int | None,
    ) -> None:
        self._bounds = bounds
        self._ground = bounds.ground
        self._context = context
        self._score = score
        self._budget = budget
        self._number = context.job.failures + 1  # what was lost with a worker has failed
        self._phrase_id: Final = new_key()
        self._began_ms = self._ground.times.now_ms
        self._own = BudgetStanding(budget, first_began_ms or self._began_ms, spent_bu)
        self._subjects = [agent_of(bounds.agent)]
        if budget.charge_to is not None:
            self._subjects.append(account_of(budget.charge_to))
        self._capping = {whose: standing.budget for whose, standing in self._limits(standings)}
        self._phases = _phases_of(score, self._capping.values(), self._number)
        self._warned: set[str] = set()
        self._pause_ms = _LOOKS_MS[0]
        self._cut: MeshError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._group: ProcessGroup | None = None
        self.meter = Meter(bounds.monotonic)
        epoch_ms = self._ground.beat(self._began_ms).epoch_ms
        self._share = Share(self.meter, self._subjects, epoch_ms, self._cut_off)

    # --- for the work to see ---------------------------------------------------------------------

    @property
    def beats(self) -> float:
        """How many have been used."""
        now_ms = self._ground.times.now_ms
        return max(0.0, self._ground.timeline.beats_between(self._began_ms, now_ms))

    @property
    def phrase_beats(self) -> float | None:
        """How many there are, if they are bounded."""
        return sum(self._phases.values()) if self._phases else None

    # --- keeping it ------------------------------------------------------------------------------

    async def keep(self, attempting: Coroutine[Any, Any, Ended]) -> Ended:
        """Have the attempt made within its bounds; how it ended, which is recorded with what it used."""
        if (why := self._nothing_left()) is not None:
            attempting.close()
            failed = Ended(self._context.job, JobState.FAILED, why, finished_ms=self._began_ms)
            return failed._replace(may_retry=False)
        self._bounds.shares.join(self._share)
        try:
            return await self._kept(attempting)
        finally:
            self._bounds.shares.leave(self._share)

    def _nothing_left(self) -> str | None:
        """Why it is not even begun: earlier attempts have used all there was."""
        budget, score = self._budget, self._score
        if score is not None and self._number > (most := score.retry.max_phrases):
            return f"all phrases of its score ({most}) were played before"
        if verdict(self._own.bu, budget) in _SPENT:
            return f"{self._own.bu:.2f} of {budget.max_bu:g} beats of its budget were used before"
        if self._own.verdict(self._ground.timeline, self._began_ms) is Verdict.STOP:
            return _hard_end(_OWN, budget)
        return None

    async def _kept(self, attempting: Coroutine[Any, Any, Ended]) -> Ended:
        watching = asyncio.create_task(self._watch(), name="vox-mesh-bounds")
        try:
            await self._tell_begin()
            ended = await attempting
        except asyncio.CancelledError:
            attempting.close()  # it may not have begun
            watching.cancel()
            await to_the_end(asyncio.create_task(self._record(None), name="vox-mesh-phrase-end"))
            raise
        finally:
            watching.cancel()
        ended = self._judged(ended)
        await self._record(ended)
        return ended

    async def within(self, work: Work, context: JobContext) -> Ended:
        """Do the work; cut off, it raises why."""
        self._timeout = limit = asyncio.timeout(None)
        try:
            async with limit:
                if self._cut is not None:
                    raise self._cut
                ended: Ended = await work(context)
                return ended
        except TimeoutError:
            if self._cut is None or not limit.expired():
                raise
            raise self._cut from None

    def take(self, group: ProcessGroup) -> None:
        """The work is a command, and these are its processes."""
        self._group = group
        self.meter.watch(group)

    def _cut_off(self, why: MeshError) -> None:
        if self._cut is not None or (self._group is not None and self._group.has_ended):
            return
        self._cut = why
        _log.warning("job %s is cut off: %s", self._context.job.job_id, why.line)
        self._context.log(f"cut off: {why.line}")
        if self._group is not None:
            self._group.end()  # what it has printed is kept, then
        elif self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def _watch(self) -> None:
        try:
            await self._look_on()
        except Exception:
            _log.exception("the bounds of job %s could not be kept", self._context.job.job_id)
            self._cut_off(OverBudget("its worker could not keep its bounds"))

    async def _look_on(self) -> None:
        times = self._ground.times
        while self._cut is None:
            if self.meter.is_sampling:
                await asyncio.to_thread(self.meter.look)
            standings = await self._bounds.budgets.standings()
            now_ms = times.now_ms
            next_ms = self._look(now_ms, standings)
            await times.until(min(next_ms, now_ms + self._pause_ms))
            self._pause_ms = min(2 * self._pause_ms, _LOOKS_MS[1])

    def _look(self, now_ms: int, standings: Mapping[str, BudgetStanding]) -> int:
        """See whether anything is over; when to look again."""
        timeline = self._ground.timeline
        beat = timeline.beat_at(now_ms)
        moments = [beat.ends_ms]
        if self._phases:
            end_ms = timeline.after(self._began_ms, sum(self._phases.values()))
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._cut_off(self._overrun())
        # The first look in a beat tells of the one before; or of several, if there was none in them.
        beats = max(1.0, timeline.beats_between(self._share.epoch_ms, beat.epoch_ms))
        for whose, standing in self._limits(standings):
            moments += self._look_at(whose, standing, now_ms)
            self._look_at_beats(whose, standing.budget, beats)
        self._share.count_from(beat.epoch_ms)
        return min(each for each in moments if each > now_ms)

    def _look_at_beats(self, whose: str, budget: Budget, beats: float) -> None:
        """A ceiling of the job is its own; one of an agent or account is for all its work here together."""
        if whose == _OWN:
            excess, share = budget.over_in_beat(self._share.used, beats), self._share
        elif (found := self._bounds.shares.excess(self._share, whose, budget, beats)) is not None:
            excess, share = found
        else:
            return
        if excess is not None:
            share.stop(OverBudget(f"the budget of {whose} is exceeded: {excess}"))

    def _limits(self, standings: Mapping[str, BudgetStanding]) -> list[tuple[str, BudgetStanding]]:
        found = [(each, standings[each]) for each in self._subjects if each in standings]
        return [(_OWN, self._own), *found]

    def _look_at(self, whose: str, standing: BudgetStanding, now_ms: int) -> list[int]:
        budget, timeline, moments = standing.budget, self._ground.timeline, []
        if (end_ms := budget.hard_end_ms(timeline, standing.since_ms)) is not None:
            moments.append(end_ms)
            if now_ms >= end_ms:
                self._cut_off(OverBudget(_hard_end(whose, budget)))
        if budget.max_bu is not None:
            stop_bu = budget.thresholds.work * budget.max_bu - standing.bu
            moments.append(timeline.after(self._began_ms, max(0.0, stop_bu)) + 1)
            self._judge(whose, budget, standing.bu + self.beats)
        return moments

    def _judge(self, whose: str, budget: Budget, bu: float) -> None:
        what = verdict(bu, budget)
        line = f"{bu:.2f} of {budget.max_bu:g} beats of the budget of {whose} are used"
        if what is Verdict.STOP:
            self._cut_off(OverBudget(line))
        elif what is not Verdict.OK and whose not in self._warned:
            self._warned.add(whose)
            _log.warning("job %s: %s", self._context.job.job_id, line)
            self._context.log(line)

    def _overrun(self) -> MeshError:
        phase, beats = list(self._phases)[-1], sum(self._phases.values())
        if self._score is None:
            whose = next(
                whose for whose, each in self._capping.items() if each.phase_caps.get(phase) == beats
            )
            return OverBudget(f"the {beats:g} beats that the budget of {whose} has for {phase} are used")
        return PhaseOverrun(f"its phrase of {beats:g} beats is over", phase=phase)

    # --- its beginning and its end ---------------------------------------------------------------

    async def _tell_begin(self) -> None:
        """Have it known that it is under way: should its worker be gone, somebody else tells its end."""
        job = self._context.job
        begin = PhraseBegin(
            phrase_id=self._phrase_id,
            job_id=job.job_id,
            claim_token=job.claim_token,
            agent_id=self._bounds.agent,
            account=self._budget.charge_to or "",
            role=job.kind,
            attempt=self._number,
            began_ms=self._began_ms,
        )
        script = Script(self._bounds.budgets.record_begin(begin), appendable=True)
        try:
            await self._ground.store.write(script, timeout=_RECORD_S)
        except MeshError as error:
            _log.warning("that job %s is under way was not recorded: %s", job.job_id, error.line)

    def _judged(self, ended: Ended) -> Ended:
        """What becomes of the job: cut off it has failed; and it is tried again only while it may be."""
        if self._cut is not None:
            ended = ended._replace(state=JobState.FAILED, reason=self._cut.line, delay_ms=None)
        may_retry = ended.may_retry and not isinstance(self._cut, OverBudget)
        if self._score is not None:
            defers = DEFER in self._score.escalation.on_overrun or self._cut is None
            may_retry = may_retry and defers and self._number < self._score.retry.max_phrases
        if verdict(self._own.bu + self.beats, self._budget) in _SPENT:
            may_retry = False
        return ended._replace(may_retry=may_retry)

    async def _record(self, ended: Ended | None) -> None:
        """Record what was used; without an end, it was given back or lost on the way."""
        await asyncio.to_thread(self.meter.look)
        ground, job = self._ground, self._context.job
        now_ms = max(self._began_ms, ground.times.now_ms)
        is_done = ended is not None and ended.state is JobState.SUCCEEDED
        end = PhraseEnd(
            phrase_id=self._phrase_id,
            agent_id=self._bounds.agent,
            task_id=job.job_id,
            job_id=job.job_id,
            outcome=_outcome_of(ended),
            began_ms=self._began_ms,
            ended_ms=now_ms,
            beats=_by_phase(self._phases, ground.timeline.beats_between(self._began_ms, now_ms)),
            attempt=self._number,
            overruns=int(isinstance(self._cut, PhaseOverrun)),
            first_useful_ms=now_ms if is_done else None,
            resources=self.meter.used,
            account=self._budget.charge_to or "",
            role=job.kind,
            note="it was stopped" if ended is None else ended.reason or "",
        )
        script = Script(self._bounds.budgets.record(end), appendable=True)
        try:
            await ground.store.write(script, timeout=_RECORD_S if ended is None else None)
        except MeshError as error:
            _log.error("what job %s used was not recorded: %s", job.job_id, error.line)


def _phases_of(score: Score | None, budgets: Collection[Budget], number: int) -> dict[str, float]:
    """The beats of each phase; without a score and a cap there is no bound to them."""
    if score is not None:
        return capped(score.attempt(number), budgets)
    caps = [each.phase_caps[_WORK] for each in budgets if _WORK in each.phase_caps]
    return {_WORK: min(caps)} if caps else {}


def _hard_end(whose: str, budget: Budget) -> str:
    return f"the budget of {whose} has its hard end: {budget.hard_end}"


def _by_phase(phases: Mapping[str, float], beats: float) -> dict[str, float]:
    """Beats that were used, one phase after the other; what is more is the last one's."""
    used: dict[str, float] = {}
    for phase, most in phases.items():
        used[phase] = min(most, beats)
        beats -= used[phase]
    last = next(reversed(used), _WORK)
    return used | {last: used.get(last, 0.0) + beats}


def _outcome_of(ended: Ended | None) -> PhraseOutcome:
    if ended is None or ended.goes_back:
        return PhraseOutcome.DEFERRED
    return PhraseOutcome.DONE if ended.state is JobState.SUCCEEDED else PhraseOutcome.FAILED
