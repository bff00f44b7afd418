"""A stopwatch that counts beats."""

from __future__ import annotations

from vox_mesh.rhythm.context import RhythmContext


class Stopwatch:
    """Counts beats while it runs. Started twice, it runs until it is stopped twice."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._counted = 0.0
        self._starts = 0
        self._since_ms = 0

    def start(self) -> None:
        """Start counting."""
        if not self._starts:
            self._since_ms = self._context.times.now_ms
        self._starts += 1

    def stop(self) -> None:
        """Stop counting."""
        self._starts -= 1
        if not self._starts:
            self._counted += self._running

    @property
    def beats(self) -> float:
        """The beats counted, as a fraction."""
        return self._counted + (self._running if self._starts else 0.0)

    @property
    def _running(self) -> float:
        # The database's clock may have been set back; that does not reduce the count.
        return max(0.0, self._context.timeline.beats_between(self._since_ms, self._context.times.now_ms))
