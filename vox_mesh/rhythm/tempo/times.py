"""Waiting by the mesh's clock: for a moment, or no longer than until one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from vox_mesh.nodes.clock import MeshClock

_LONGEST_S: Final = 60.0
"""After so long the clock is looked at again: the database's may have been set."""


class Times:
    """What time it is, and how to wait for another. Where a clock is turned by hand, `turned` wakes all."""

    def __init__(self, clock: MeshClock) -> None:
        self._clock = clock
        self._turned = asyncio.Event()

    @property
    def now_ms(self) -> int:
        """The database's time, as far as it is known here."""
        return self._clock.now_ms

    def turned(self) -> None:
        """The clock was turned, and timers know nothing of it."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def until(self, at_ms: int, *, or_set_back: bool = False) -> None:
        """Wait for a moment; or no longer than until the clock was set back."""
        left_ms = at_ms - self._clock.now_ms
        while left_ms > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_ms / 1_000, _LONGEST_S)):
                    await self._turned.wait()
            before_ms, left_ms = left_ms, at_ms - self._clock.now_ms
            if or_set_back and left_ms > before_ms:
                return

    @asynccontextmanager
    async def limit(self, at_ms: int) -> AsyncIterator[asyncio.Timeout]:
        """Cut the block off at a moment, with `TimeoutError`; `expired()` tells whether that was it."""
        async with asyncio.timeout(None) as timeout:
            alarm = asyncio.create_task(self._cut_off(at_ms, timeout), name="vox-mesh-beat-limit")
            try:
                yield timeout
            finally:
                alarm.cancel()

    async def _cut_off(self, at_ms: int, timeout: asyncio.Timeout) -> None:
        await self.until(at_ms)
        timeout.reschedule(asyncio.get_running_loop().time())
