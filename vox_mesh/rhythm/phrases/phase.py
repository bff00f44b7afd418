"""A phase of a phrase: a block of work with a deadline."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from vox_mesh.rhythm.phrases.cutoff import Cutoff

if TYPE_CHECKING:
    from vox_mesh.rhythm.phrases.phrase import Phrase


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
