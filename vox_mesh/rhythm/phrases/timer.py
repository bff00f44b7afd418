"""The timer of a phrase: the deadlines of it and its phases, and the beats used and waited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from vox_mesh.errors import BadValue, OverBudget
from vox_mesh.model.rhythm.phases import PhaseSpan, own_spans, shared_spans
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.phrases.cutoff import Cutoff
from vox_mesh.rhythm.phrases.spec import PhraseSpec

BETWEEN: Final = "between"
"""The name under which beats outside of any phase are counted."""

FALLBACK: Final = "fallback"
"""The name under which beats of a fallback are counted."""


class PhraseTimer:
    """Deadlines and counts of a phrase, in beats of the mesh.

    One that begins with a bar shares the phases of the mesh; another counts its own from its beginning.
    """

    def __init__(self, context: RhythmContext, spec: PhraseSpec, attempt: int) -> None:
        self._context = context
        self._allowance = spec.allowance
        self._task = spec.task
        self._is_shared = spec.start == "downbeat"
        self.beats: Final[dict[str, float]] = {**spec.score.attempt(attempt)}
        self._caps: dict[str, float] = spec.score.wait_budget.model_dump()
        self._apply_caps()
        self._used = {name: Stopwatch(context) for name in (*self.beats, BETWEEN, FALLBACK)}
        self._waited = {name: Stopwatch(context) for name in self._caps}
        self._position = BETWEEN
        self._is_falling_back = False
        self._counting: Stopwatch | None = None
        self.began_ms = 0
        self._spent_ms: int | None = None
        self._spans_by: Plan | None = None
        self._spans: Sequence[PhaseSpan] = ()
        self.ended_ms = 0
        self.is_over = False

    def begin(self, at_ms: int | None = None) -> Cutoff:
        """Start the timer, now or at a time, and return the deadline of the whole phrase."""
        context = self._context
        self._apply_caps()  # the budgets of agent and account are known only now
        self.began_ms, self._spans_by = context.times.now_ms if at_ms is None else at_ms, None
        if self._is_shared:
            timeline = context.timeline
            self.beats.update({span.phase: timeline.beats_between(*span[1:]) for span in self.spans()})
        spent_ms = self._allowance.ends_ms(context.timeline, self.began_ms)
        if spent_ms is not None and spent_ms < self.ends_ms:  # a budget that lasts until the end is no limit
            self._spent_ms = spent_ms
        self._count(self.began_ms)
        return Cutoff(context.times, self.ends_ms)

    def _apply_caps(self) -> None:
        self.beats.update(self._allowance.capped(self.beats))
        self._caps.update(self._allowance.capped_waits(self._caps))

    # --- deadlines -------------------------------------------------------------------------------

    @property
    def ends_ms(self) -> int:
        """When the phrase ends at the latest."""
        ends_ms = self.spans()[-1].ends_ms
        return ends_ms if self._spent_ms is None else min(ends_ms, self._spent_ms)

    def phase_ends_ms(self, phase: str) -> int:
        """Return the deadline of a phase that begins now. Beginning early does not add beats."""
        left = max(0.0, self.beats[phase] - self._used[phase].beats)
        own_ms = self._context.timeline.after(self._context.times.now_ms, left)
        latest_ms = next(span.ends_ms for span in self.spans() if span.phase == phase)
        return min(latest_ms, own_ms, self.ends_ms)

    def wait_ends_ms(self, budget: str, cutoff: Cutoff) -> int:
        """Return the deadline of a wait that begins now within a cutoff."""
        if budget not in self._caps:
            raise BadValue(f"wait budget must be one of {', '.join(self._caps)}, got {budget!r}")
        left = max(0.0, self._caps[budget] - self._waited[budget].beats)
        return min(self._context.timeline.after(self._context.times.now_ms, left), cutoff.at_ms)

    def beats_until(self, at_ms: int) -> float:
        """Return the beats until a time, 0 if it has passed."""
        return max(0.0, self._context.timeline.beats_between(self._context.times.now_ms, at_ms))

    @property
    def is_over_budget(self) -> bool:
        """Whether the budget was used up before the phrase ended."""
        return self._spent_ms is not None and self._spent_ms <= self._context.times.now_ms

    def over_budget_error(self) -> OverBudget:
        """Return the error for an exhausted budget."""
        return OverBudget(
            f"budget of {self._task} is exhausted", hint="run `vox-mesh budget report`, or raise the budget"
        )

    def spans(self) -> Sequence[PhaseSpan]:
        """Return the phases of the phrase."""
        plan = self._context.plan
        if self._spans_by is not plan:
            self._spans_by = plan
            if self._is_shared:
                self._spans = shared_spans(plan, self.began_ms, self.beats)
            else:
                self._spans = own_spans(plan.timeline, self.began_ms, self.beats)
        return self._spans

    # --- usage -----------------------------------------------------------------------------------

    @property
    def position(self) -> str:
        """The name under which beats are counted."""
        return self._position

    def count_as(self, name: str, at_ms: int | None = None) -> None:
        """Count beats under this name from now on, or from a time since the last count."""
        self._position = name
        self._count(at_ms)

    @contextmanager
    def count_fallback(self) -> Iterator[None]:
        """Count beats as the fallback's, even if phases begin or end meanwhile."""
        self._is_falling_back = True
        self._count()
        try:
            yield
        finally:
            self._is_falling_back = False
            self._count()

    def stop(self, at_ms: int | None = None) -> None:
        """Stop counting: the phrase has ended, now or at a time since the last count."""
        self.ended_ms, self.is_over = self._context.times.now_ms if at_ms is None else at_ms, True
        self._count(at_ms)

    def _count(self, at_ms: int | None = None) -> None:
        if self._counting is not None:
            self._counting.stop(at_ms)
        self._counting = None
        if not self.is_over:
            self._counting = self._used[FALLBACK if self._is_falling_back else self._position]
            self._counting.start(at_ms)

    @property
    def late_beats(self) -> float:
        """The beats between the deadline and the actual end."""
        return max(0.0, self._context.timeline.beats_between(self.ends_ms, self.ended_ms))

    @contextmanager
    def count_wait(self, budget: str) -> Iterator[None]:
        """Count beats waited, in addition to beats used."""
        self._waited[budget].start()
        try:
            yield
        finally:
            self._waited[budget].stop()

    @property
    def used(self) -> dict[str, float]:
        """The beats used by phase, and outside of phases if there were any."""
        beats = {name: stopwatch.beats for name, stopwatch in self._used.items()}
        return {name: count for name, count in beats.items() if count or name in self.beats}

    @property
    def waited(self) -> dict[str, float]:
        """The beats waited, without the delay in noticing the end of a wait."""
        return {name: min(stopwatch.beats, self._caps[name]) for name, stopwatch in self._waited.items()}


class Stopwatch:
    """Counts beats while it runs. Started twice, it runs until it is stopped twice."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._counted = 0.0
        self._starts = 0
        self._since_ms = 0

    def start(self, at_ms: int | None = None) -> None:
        """Start counting, now or at a time."""
        if not self._starts:
            self._since_ms = self._context.times.now_ms if at_ms is None else at_ms
        self._starts += 1

    def stop(self, at_ms: int | None = None) -> None:
        """Stop counting, now or at a time."""
        self._starts -= 1
        if not self._starts:
            self._counted += self._count_until(at_ms)

    @property
    def beats(self) -> float:
        """The beats counted, as a fraction."""
        return self._counted + (self._count_until(None) if self._starts else 0.0)

    def _count_until(self, at_ms: int | None) -> float:
        until_ms = self._context.times.now_ms if at_ms is None else at_ms
        # The database's clock may have been set back; that does not reduce the count.
        return max(0.0, self._context.timeline.beats_between(self._since_ms, until_ms))
