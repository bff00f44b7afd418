"""Bar schedules: every N bars of the mesh, on the downbeat, by the tempos in force."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.model.rhythm.plan import Plan


@dataclass(frozen=True, slots=True)
class BarSchedule:
    """The downbeats of every n-th bar, counted from the first bar of the first tempo."""

    plan: Plan
    bars: int

    def after(self, time_ms: int) -> int:
        """Return the first such downbeat after a time."""
        number = self.plan.bar_at(time_ms)
        return self.plan.timeline.downbeat_after(time_ms, self.bars - number % self.bars)

    def latest(self, time_ms: int) -> int:
        """Return the last such downbeat up to a time."""
        number = self.plan.bar_at(time_ms)
        return self.plan.downbeat_of(number - number % self.bars)
