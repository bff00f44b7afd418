"""Shared readings: what the database was last asked, for all requests that need it at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_REUSE_S: Final = 1.0
"""How long what was found is used."""

_APART_S: Final = 0.1
"""The least time between two readings: so often can requests that are refused cause one."""


class SharedReading:
    """Decide whether the last reading is used or the database is asked again.

    However many requests come, there is one reading at a time, and few in a second.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bool]],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`read` keeps what it finds, and returns whether the database has answered."""
        self._read = read
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._begun_at: float | None = None
        self._used_until: float | None = None
        self._begun = 0  # readings, and the number of the last that came to its end
        self._ended = 0

    def expire(self) -> None:
        """Have the next request read again."""
        self._used_until = None

    async def reuse(self) -> None:
        """Read, unless the last reading began within the last second."""
        if self._is_fresh():
            return
        before = self._ended
        async with self._lock:
            if not self._is_fresh() and self._ended == before:
                await self._run()

    async def renew(self) -> None:
        """Return after a reading that began after this call. All callers of a moment share it."""
        before = self._begun
        async with self._lock:
            if self._ended > before:
                return
            if self._begun_at is not None:
                await self._sleep(max(0.0, self._begun_at + _APART_S - self._monotonic()))
            await self._run()

    async def _run(self) -> None:
        self._begun += 1
        number, begun_at = self._begun, self._monotonic()
        self._begun_at = begun_at
        has_answer = await self._read()
        self._used_until = _REUSE_S + (begun_at if has_answer else self._monotonic())  # a rest, if it is away
        self._ended = number

    def _is_fresh(self) -> bool:
        return self._used_until is not None and self._monotonic() < self._used_until
