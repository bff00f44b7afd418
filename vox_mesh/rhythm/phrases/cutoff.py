"""Deadlines on the mesh's clock that cancel a block of work; they may be nested."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from vox_mesh.rhythm.context import RhythmContext, Times

_CANCEL_GRACE_MS: Final = 500
"""How long cancelled work may take to clean up, or half a beat if that is shorter."""


class Cutoff:
    """Cancels the block between `begin` and `end` at a deadline.

    To nest another one inside, hold the outer one meanwhile: the inner deadline is never later, and if both
    fired at the same moment they would be indistinguishable.
    """

    def __init__(self, times: Times, at_ms: int) -> None:
        self.at_ms = at_ms
        self._times = times
        self._timeout = asyncio.timeout(None)
        self._alarm: asyncio.Task[None] | None = None
        self._holds = 0
        self._is_on = False

    async def begin(self) -> None:
        """Start the deadline."""
        await self._timeout.__aenter__()
        self._is_on = True
        self._arm()

    async def end(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Stop the deadline. Return whether the block was cut off and raised nothing else."""
        self._is_on = False
        self._disarm()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            return True
        return False

    @property
    def has_fired(self) -> bool:
        """Whether the deadline passed before the block ended."""
        return self._timeout.expired()

    def hold(self) -> None:
        """Suspend the deadline until `release` was called as often, which may be after the block's end."""
        self._holds += 1
        self._disarm()
        if self._is_on and not self.has_fired:
            self._timeout.reschedule(None)

    def release(self) -> None:
        """Resume the deadline; it fires at once if it has passed."""
        self._holds -= 1
        if not self._holds:
            self._arm()

    def _arm(self) -> None:
        if not self._is_on or self.has_fired:
            return
        if self.at_ms <= self._times.now_ms:
            self._fire()
        else:
            self._alarm = asyncio.create_task(self._wait(), name="vox-mesh-cutoff")

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _wait(self) -> None:
        await self._times.until(self.at_ms)
        self._fire()

    def _fire(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())


async def call_until(function: Callable[[], Any], context: RhythmContext, at_ms: int) -> Any:
    """Call a function and return its result, awaited until `at_ms` at most; then raise `TimeoutError`."""
    answer = function()
    if not inspect.isawaitable(answer):
        return answer
    future = asyncio.ensure_future(answer)
    try:
        is_done = await is_done_by(future, context.times, at_ms)
    finally:
        await cancel_and_wait(future, context)
    if not is_done or future.cancelled():  # something else cancelled it, not this task
        raise TimeoutError("it took too long, or was cancelled")
    return future.result()


async def cancel_and_wait(future: asyncio.Future[Any], context: RhythmContext) -> None:
    """Cancel a future unless it is done, and wait briefly for its end."""
    future.add_done_callback(_retrieve_exception)
    if not future.done():
        future.cancel()
        grace_ms = min(_CANCEL_GRACE_MS, context.beat().beat_ms // 2)
        await is_done_by(future, context.times, context.times.now_ms + grace_ms)


async def is_done_by(future: asyncio.Future[Any], times: Times, at_ms: int) -> bool:
    """Wait for a future until a time, without cancelling it. Return whether it is done."""
    alarm = asyncio.create_task(times.until(at_ms), name="vox-mesh-cutoff")
    try:
        await asyncio.wait((future, alarm), return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        alarm.cancel()


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
