"""A phrase: one round of plan, work and review on a task, with a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from vox_mesh.errors import BadValue, MeshError, PhaseOverrun, PhraseDeferred
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.costs import PhraseEnd, PhraseOutcome, Resources
from vox_mesh.model.rhythm.score import CHECKPOINT, DEFER
from vox_mesh.rhythm.context import Times
from vox_mesh.rhythm.phrases.checkpoints import Checkpoints
from vox_mesh.rhythm.phrases.cutoff import Cutoff, cancel_and_wait
from vox_mesh.rhythm.phrases.reporting import (
    PLAN,
    REVIEW,
    WORK,
    StatusReporter,
    describe_error,
    join_remarks,
    write_end,
)
from vox_mesh.rhythm.phrases.spec import PhraseParts, PhraseSpec, RetryPosition
from vox_mesh.rhythm.phrases.timer import BETWEEN, PhraseTimer
from vox_mesh.rhythm.phrases.waits import HELP, Waits
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.script import new_key

_log = logging.getLogger(__name__)

T = TypeVar("T")

_LATENESS_TOLERANCE_BEATS: Final = 0.1
"""A phrase that ends at most this many beats late still counts as on time: cancelling takes a moment."""


class Phrase:
    """`async with phrase`: the block has a deadline, and its end is recorded with its cost."""

    def __init__(
        self,
        parts: PhraseParts,
        spec: PhraseSpec,
        checkpoints: Checkpoints,
        attempt: int = 1,
        position: RetryPosition = RetryPosition.ALONE,
    ) -> None:
        self._parts = parts
        self._spec = spec
        self._position = position
        self._timer = PhraseTimer(parts.context, spec, attempt)
        self._reporter = StatusReporter(parts.status, spec.agent, spec.task, spec.score_name)
        self._checkpoints = checkpoints
        self._checkpoint_task: asyncio.Task[None] | None = None
        self._phase: Phase | None = None
        self._is_cut_short = False
        self._first_useful_ms: int | None = None
        self.times: Final[Times] = parts.context.times
        self.phrase_id: Final = new_key()
        self.task: Final = spec.task
        self.agent: Final = spec.agent
        self.attempt: Final = attempt
        """The number of this phrase among those of its task, from 1."""
        self.beats: Final[dict[str, float]] = self._timer.beats
        """The beats of each phase."""
        self.resources = Resources()
        """The resources used besides beats, as reported by the caller."""
        self.overruns = 0
        self.outcome: PhraseOutcome | None = None
        """The outcome, once the phrase has ended."""
        self.end: PhraseEnd | None = None
        """The recorded end, once the phrase has ended."""
        self.cost: float | None = None
        self.cutoff: Cutoff | None = None
        """The innermost active deadline; not for callers."""
        self._waits = Waits(
            parts, spec, self._timer, self._reporter, self.phrase_id, lambda: self._active_cutoff
        )

    # --- beginning -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin the phrase."""
        if self.cutoff is not None:
            raise BadValue("phrase was entered before: each runs once", hint="create another phrase")
        context = self._parts.context
        await self._read_history()
        if self._spec.start == "downbeat":
            bar = context.timeline.window_at(self.times.now_ms - 1)  # a bar that begins right now counts
            await self.times.until(bar.end_ms)
        self.cutoff = self._cutoff = self._timer.begin()
        if self._spec.allowance.is_exhausted(context.timeline, self.began_ms):
            self._timer.stop()
            error = self._timer.over_budget_error()
            await self._record_end(error)
            raise error
        await self._cutoff.begin()
        if self._spec.state is not None:
            run = partial(self._checkpoints.run, self._reporter)
            checkpoint_loop = context.store.faults.keep_running("checkpoints", run)
            self._checkpoint_task = asyncio.create_task(checkpoint_loop, name="vox-mesh-checkpoints")
        return self

    async def _read_history(self) -> None:
        for refresh in (
            self._checkpoints.refresh,
            partial(self._spec.allowance.refresh, self._parts.budgets),
        ):
            try:
                await refresh()
            except MeshError as error:
                _log.warning("earlier work not readable: task=%s error=%s", self.task, error.line)

    @property
    def resumed(self) -> Any:
        """The last checkpoint of this agent and task, or `None`."""
        return self._checkpoints.value

    @property
    def began_ms(self) -> int:
        """When the phrase began."""
        return self._timer.began_ms

    @property
    def ends_ms(self) -> int:
        """When the phrase ends at the latest."""
        return self._timer.ends_ms

    @property
    def beats_left(self) -> float:
        """The beats left, as a fraction."""
        return self.beats_until(self.ends_ms)

    def beats_until(self, at_ms: int) -> float:
        """Return the beats until a time, 0 if it has passed."""
        return self._timer.beats_until(at_ms)

    # --- phases ----------------------------------------------------------------------------------

    def plan(self) -> Phase:
        """Return the planning phase."""
        return Phase(self, PLAN)

    def work(self) -> Phase:
        """Return the work phase."""
        return Phase(self, WORK)

    def review(self) -> Phase:
        """Return the review phase."""
        return Phase(self, REVIEW)

    def begin_phase(self, phase: Phase) -> Cutoff:
        """Begin a phase and set its deadline. Return the outer deadline, which the phase must hold."""
        outer = self._active_cutoff
        if self._phase is not None:
            raise BadValue(
                f"phase {phase.name} can't begin: {self._phase.name} has not ended",
                hint="end that phase first",
            )
        if self._timer.is_over_budget:
            raise self._timer.over_budget_error()
        phase.ends_ms = self._timer.phase_ends_ms(phase.name)
        self._reporter.begin_phase(phase.name, phase.beats_left)
        self._phase = phase
        self._timer.count_as(phase.name)
        return outer

    async def end_phase(self, phase: Phase, error: BaseException | None, *, was_cut_off: bool) -> None:
        """End a phase; escalate or raise if it has overrun."""
        self._timer.count_as(BETWEEN)
        self._phase = None
        if not phase.overran:
            return
        self.overruns += 1
        if error is not None:
            return  # the caller's error is the one to raise
        if self._timer.is_over_budget:
            raise self._timer.over_budget_error()
        await self._escalate(phase.name, was_cut_off=was_cut_off)

    async def _escalate(self, phase: str, *, was_cut_off: bool) -> None:
        """Run the score's steps for an overrun. A block that ended by itself, if late, is not repeated."""
        self._reporter.report_overrun(phase)
        steps = self._spec.score.escalation.on_overrun
        if CHECKPOINT in steps:
            await self._checkpoints.keep_state(self._reporter)
        if not was_cut_off:
            return
        self._is_cut_short = True
        if DEFER in steps and self._position is not RetryPosition.LAST:
            raise PhraseDeferred(
                f"{phase} of {self.task} overran its beats", phase=phase, hint="continue in another phrase"
            )
        if DEFER in steps or phase == BETWEEN:
            raise PhaseOverrun(
                f"{phase} of {self.task} overran its beats: no phrase follows",
                phase=phase,
                hint="give the task more beats or more phrases",
            )

    @property
    def _active_cutoff(self) -> Cutoff:
        if self.cutoff is None or self.outcome is not None:
            raise BadValue("phrase is not running", hint="use it within `async with phrase`")
        return self.cutoff

    # --- waiting and reporting -------------------------------------------------------------------

    async def wait_for(self, awaitable: Awaitable[T], budget: str = HELP, wait_for: Sequence[str] = ()) -> T:
        """Wait for at most the beats left of that wait budget and of the phase.

        After that the awaitable is cancelled, the score's `on_wait_exhausted` steps run, and `WaitExhausted`
        is raised. `wait_for` names the things waited for in the status claim.
        """
        return await self._waits.wait(awaitable, budget, wait_for)

    async def ask_help(self, to: str, body: Any) -> Message:
        """Ask an agent or a role for help and return the answer.

        Raises `WaitExhausted` as `wait_for` does, and also if the promise is broken or none is made by the
        end of the bar. The fallback named in the promise takes precedence over the score's.
        """
        return await self._waits.ask_help(to, body)

    def progress(self, done: float, notes: str = "") -> None:
        """Report the progress, from 0 to 1."""
        self._reporter.progress(done, notes, self.beats_until(self._active_cutoff.at_ms))

    @property
    def result(self) -> Any:
        """The result, if one was set; a fallback sets it."""
        return self._waits.result

    @result.setter
    def result(self, result: Any) -> None:
        self._waits.result = result

    def useful(self) -> None:
        """Mark the first useful result; later calls have no effect."""
        if self._first_useful_ms is None:
            self._first_useful_ms = self.times.now_ms

    async def checkpoint(self, value: Any) -> None:
        """Save a JSON value as the task's checkpoint; an unchanged value is written once per bar."""
        await self._checkpoints.keep(value)

    # --- end -------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the phrase and record it. Errors covered by a fallback or the next phrase are not raised."""
        was_cut_off = await self._cutoff.end(kind, error, traceback)
        self._timer.stop()
        overrun = await self._overrun_error(was_cut_off) if was_cut_off or error is None else None
        error = overrun if was_cut_off else overrun or error
        self._note_lateness()
        await self._record_end(error)
        if error is None or self._is_covered(error):
            return True
        if overrun is not None:
            raise overrun
        return False

    async def _overrun_error(self, was_cut_off: bool) -> BaseException | None:
        """Return the error of an overrun, or of a cancellation during it; to raise after the recording."""
        if self._timer.is_over_budget:
            return self._timer.over_budget_error()
        if was_cut_off:
            self.overruns += 1
            try:
                await self._escalate(BETWEEN, was_cut_off=True)
            except BaseException as error:
                return error
        return None

    def _note_lateness(self) -> None:
        """Count a block that ended by itself after the deadline as overrun."""
        late = self._timer.late_beats
        if late > _LATENESS_TOLERANCE_BEATS:
            self._reporter.add_remark(f"ended {late:.2g} beats late")
            self._is_cut_short = True
            self.overruns = max(self.overruns, 1)

    def _is_covered(self, error: BaseException) -> bool:
        if isinstance(error, PhraseDeferred):
            return self._position is RetryPosition.FOLLOWED
        return self._waits.has_covered(error)

    def _outcome_of(self, error: BaseException | None) -> PhraseOutcome:
        if isinstance(error, PhraseDeferred):
            return PhraseOutcome.DEFERRED
        if error is not None and not self._waits.has_covered(error):
            return PhraseOutcome.FAILED
        is_degraded = self._is_cut_short or self._waits.has_exhausted
        return PhraseOutcome.DEGRADED if is_degraded else PhraseOutcome.DONE

    async def _record_end(self, error: BaseException | None) -> None:
        """Record the end, even if cancelled meanwhile."""
        self.outcome = self._outcome_of(error)
        await to_the_end(
            asyncio.create_task(self._write_record(self.outcome, error), name="vox-mesh-phrase-end")
        )

    async def _write_record(self, outcome: PhraseOutcome, error: BaseException | None) -> None:
        await self._waits.wait_until_emitted()
        if self._checkpoint_task is not None:
            await cancel_and_wait(self._checkpoint_task, self._parts.context)
        if error is not None and not self._waits.has_covered(error):
            self._reporter.add_remark(describe_error(error))
        self.end = self._make_end(outcome)
        self._spec.allowance.spent += self.end.bu
        done = [self._checkpoints.forget()] if outcome is PhraseOutcome.DONE else []
        self.cost = await write_end(self._parts, self.end, *done)
        self._reporter.finish(self._final_state(), self.end.note, self.end.ended_ms)

    def _make_end(self, outcome: PhraseOutcome) -> PhraseEnd:
        timer, spec = self._timer, self._spec
        return PhraseEnd(
            phrase_id=self.phrase_id,
            agent_id=self.agent,
            task_id=self.task,
            outcome=outcome,
            began_ms=timer.began_ms,
            ended_ms=timer.ended_ms,
            beats=timer.used,
            waited=timer.waited,
            attempt=self.attempt,
            overruns=self.overruns,
            first_useful_ms=self._first_useful_ms,
            resources=self.resources,
            account=spec.allowance.account,
            role=spec.role,
            job_id=spec.job_id,
            note=join_remarks(self._reporter.remarks),
        )

    def _final_state(self) -> ClaimState:
        if self.outcome is PhraseOutcome.DEFERRED and self._position is RetryPosition.FOLLOWED:
            return ClaimState.WAITING  # a next phrase follows
        is_done = self.outcome in (PhraseOutcome.DONE, PhraseOutcome.DEGRADED)
        return ClaimState.DONE if is_done else ClaimState.FAILED


class Phase:
    """`async with phrase.work() as phase`: the block is cut off when its beats are used up."""

    def __init__(self, phrase: Phrase, name: str) -> None:
        self._phrase = phrase
        self.name = name
        self.ends_ms = 0
        """The deadline."""
        self.overran = False
        """Whether the block was still running at the deadline."""

    @property
    def beats_left(self) -> float:
        """The beats left, as a fraction."""
        return self._phrase.beats_until(self.ends_ms)

    async def __aenter__(self) -> Self:
        """Begin the phase. A phase that begins late has only the rest of its beats."""
        self._outer = self._phrase.begin_phase(self)
        self._cutoff = Cutoff(self._phrase.times, self.ends_ms)
        self._outer.hold()
        self._phrase.cutoff = self._cutoff
        await self._cutoff.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the phase, and escalate as the score says if it has overrun."""
        was_cut_off = await self._cutoff.end(kind, error, traceback)
        self.overran = self._cutoff.has_fired or self._phrase.times.now_ms > self.ends_ms
        try:
            await self._phrase.end_phase(self, None if was_cut_off else error, was_cut_off=was_cut_off)
        finally:
            self._phrase.cutoff = self._outer
            self._outer.release()
        return was_cut_off
