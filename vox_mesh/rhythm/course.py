"""The course of a phrase: when it and its phases end, and how many beats were used and waited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

from vox_mesh.errors import BadValue, OverBudget
from vox_mesh.rhythm.cutoff import Cutoff
from vox_mesh.rhythm.ground import Ground
from vox_mesh.rhythm.sheet import Sheet
from vox_mesh.rhythm.stopwatch import Stopwatch

BETWEEN: Final = "between"
"""Where beats are counted that lie in no phase."""

FALLBACK: Final = "fallback"
"""Where those are counted that a fallback took."""


class Course:
    """Counted from the phrase's beginning, by the beats of the mesh."""

    def __init__(self, ground: Ground, sheet: Sheet, attempt: int) -> None:
        self._ground = ground
        self._allowance = sheet.allowance
        self._task = sheet.task
        budget = sheet.allowance.budget
        self.beats: Final = budget.capped(sheet.score.attempt(attempt))
        self._ends = dict(zip(self.beats, accumulate(self.beats.values()), strict=True))
        self._caps = budget.capped_waits(sheet.score.wait_budget.model_dump())
        self._used = {name: Stopwatch(ground) for name in (*self.beats, BETWEEN, FALLBACK)}
        self._waited = {name: Stopwatch(ground) for name in self._caps}
        self._running = BETWEEN
        self.began_ms = 0
        self._spent_ms: int | None = None
        self.ended_ms = 0

    def begin(self) -> Cutoff:
        """From now on; the cutoff of all of it."""
        ground = self._ground
        self.began_ms = ground.times.now_ms
        spent_ms = self._allowance.ends_ms(ground.timeline, self.began_ms)
        if spent_ms is not None and spent_ms < self.ends_ms:  # one that lasts until the end is no limit
            self._spent_ms = spent_ms
        self._used[self._running].start()
        return Cutoff(ground.times, self.ends_ms)

    # --- its ends --------------------------------------------------------------------------------

    @property
    def ends_ms(self) -> int:
        """When it is over."""
        ends_ms = self._after(sum(self.beats.values()))
        return ends_ms if self._spent_ms is None else min(ends_ms, self._spent_ms)

    def phase_ends_ms(self, phase: str) -> int:
        """When a phase that begins now is over. One that begins early does not have more beats for that."""
        left = max(0.0, self.beats[phase] - self._used[phase].beats)
        own_ms = self._ground.timeline.after(self._ground.times.now_ms, left)
        return min(self._after(self._ends[phase]), own_ms, self.ends_ms)

    def wait_ends_ms(self, budget: str, cutoff: Cutoff) -> int:
        """When waiting that begins now has an end, within a block that is cut off."""
        if budget not in self._caps:
            raise BadValue(f"there is no wait budget {budget!r}", hint=f"one of {', '.join(self._caps)}")
        left = max(0.0, self._caps[budget] - self._waited[budget].beats)
        return min(self._ground.timeline.after(self._ground.times.now_ms, left), cutoff.at_ms)

    def beats_until(self, at_ms: int) -> float:
        """How many there are until a moment; none, if it is over."""
        return max(0.0, self._ground.timeline.beats_between(self._ground.times.now_ms, at_ms))

    @property
    def is_over_budget(self) -> bool:
        """Whether the budget is spent before the phrase is over."""
        return self._spent_ms is not None and self._spent_ms <= self._ground.times.now_ms

    def over_budget(self) -> OverBudget:
        """The error that tells so."""
        return OverBudget(
            f"{self._task} has used all that its budget allows", hint="see `vox-mesh budget report`"
        )

    def _after(self, beats: float) -> int:
        return self._ground.timeline.after(self.began_ms, beats)

    # --- what is used ----------------------------------------------------------------------------

    def go_to(self, name: str) -> str:
        """Count beats there from now on; where they were counted before."""
        before, self._running = self._running, name
        self._used[before].stop()
        self._used[name].start()
        return before

    def stop(self) -> None:
        """Count no more: it is over."""
        self._used[self._running].stop()
        self.ended_ms = self._ground.times.now_ms

    @contextmanager
    def waiting(self, budget: str) -> Iterator[None]:
        """Count what is waited, beside."""
        self._waited[budget].start()
        try:
            yield
        finally:
            self._waited[budget].stop()

    @property
    def used(self) -> dict[str, float]:
        """The beats of the phases, and of what lay between them, if anything did."""
        beats = {name: watch.beats for name, watch in self._used.items()}
        return {name: count for name, count in beats.items() if count or name in self.beats}

    @property
    def waited(self) -> dict[str, float]:
        """The beats that were waited."""
        return {name: watch.beats for name, watch in self._waited.items()}
