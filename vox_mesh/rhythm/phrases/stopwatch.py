"""Counting beats while something goes on."""

from __future__ import annotations

from vox_mesh.rhythm.context import RhythmContext


class Stopwatch:
    """Counts the beats while it runs. Started twice, it runs until it is stopped twice."""

    def __init__(self, ground: RhythmContext) -> None:
        self._ground = ground
        self._counted = 0.0
        self._starts = 0
        self._since_ms = 0

    def start(self) -> None:
        """Count from now on."""
        if not self._starts:
            self._since_ms = self._ground.times.now_ms
        self._starts += 1

    def stop(self) -> None:
        """Count no more."""
        self._starts -= 1
        if not self._starts:
            self._counted += self._running

    @property
    def beats(self) -> float:
        """How many it has counted, and parts of them."""
        return self._counted + (self._running if self._starts else 0.0)

    @property
    def _running(self) -> float:
        # The database's clock may have been set back; nothing is given back for that.
        return max(0.0, self._ground.timeline.beats_between(self._since_ms, self._ground.times.now_ms))
