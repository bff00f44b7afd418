"""Cutting work off at a moment of the mesh's clock, also where one piece of it lies in another."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.tempo.times import Times

_LAST_WORDS_MS: Final = 500
"""What was cancelled has so long to put its things away, or half a beat; then it is left to itself."""


class Cutoff:
    """Cuts off the block between `begin` and `end`.

    Whoever begins another one inside holds the outer one meanwhile: the inner one is never later, and of two
    that ring at the same moment nobody could tell which it was.
    """

    def __init__(self, times: Times, at_ms: int) -> None:
        self.at_ms = at_ms
        self._times = times
        self._timeout = asyncio.timeout(None)
        self._alarm: asyncio.Task[None] | None = None
        self._holds = 0
        self._is_on = False

    async def begin(self) -> None:
        """From here on."""
        await self._timeout.__aenter__()
        self._is_on = True
        self._arm()

    async def end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """The block has ended; whether it was cut off, and nothing else became of it."""
        self._is_on = False
        self._disarm()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            return True
        return False

    @property
    def has_rung(self) -> bool:
        """Whether the moment came before the block's end."""
        return self._timeout.expired()

    def hold(self) -> None:
        """Let it be silent, until it is released as often: that may be when the block has ended."""
        self._holds += 1
        self._disarm()
        if self._is_on and not self.has_rung:
            self._timeout.reschedule(None)

    def release(self) -> None:
        """Let it ring again: at once, if its moment is over."""
        self._holds -= 1
        if not self._holds:
            self._arm()

    def _arm(self) -> None:
        if not self._is_on or self.has_rung:
            return
        if self.at_ms <= self._times.now_ms:
            self._ring()
        else:
            self._alarm = asyncio.create_task(self._wait(), name="vox-mesh-cutoff")

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _wait(self) -> None:
        await self._times.until(self.at_ms)
        self._ring()

    def _ring(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())


async def answer_of(function: Callable[[], Any], ground: RhythmContext, at_ms: int) -> Any:
    """What a function of somebody else answers; `TimeoutError` if that is awaited beyond a moment."""
    answer = function()
    if not inspect.isawaitable(answer):
        return answer
    doing = asyncio.ensure_future(answer)
    try:
        is_there = await either(doing, ground.times, at_ms)
    finally:
        await put_away(doing, ground)
    if not is_there or doing.cancelled():  # whatever has cancelled it, it was not us who were
        raise TimeoutError("it took too long, or was cancelled")
    return doing.result()


async def put_away(doing: asyncio.Future[Any], ground: RhythmContext) -> None:
    """Cancel it if it is not done, and wait a little for its end."""
    doing.add_done_callback(_forget)
    if not doing.done():
        doing.cancel()
        last_words_ms = min(_LAST_WORDS_MS, ground.beat().beat_ms // 2)
        await either(doing, ground.times, ground.times.now_ms + last_words_ms)


async def either(doing: asyncio.Future[Any], times: Times, at_ms: int) -> bool:
    """Wait for something until a moment, and let it go on then; whether it was done."""
    alarm = asyncio.create_task(times.until(at_ms), name="vox-mesh-cutoff")
    try:
        await asyncio.wait((doing, alarm), return_when=asyncio.FIRST_COMPLETED)
        return doing.done()
    finally:
        alarm.cancel()


def _forget(doing: asyncio.Future[Any]) -> None:
    """Nobody is left who would want to know."""
    if not doing.cancelled():
        doing.exception()
