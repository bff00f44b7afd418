"""Carrying a call to the database: through the breaker, again after a fault, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from vox_mesh.errors import DatabaseBusy, NoAnswer, Unreachable
from vox_mesh.store.breaker import Breaker

T = TypeVar("T")

_BASE_S: Final = 0.5
_JITTER_S: Final = 0.5
_LONGEST_S: Final = 30.0
_BUSY_S: Final = (0.005, 0.05)
_PASSING: Final = (Unreachable, NoAnswer, DatabaseBusy)


def backoff_s(attempt: int, chance: Callable[[], float]) -> float:
    """How long to wait after the n-th fault in a row: 0.5 s, doubled each time, and some jitter."""
    doublings = min(attempt - 1, 16)
    return min(_LONGEST_S, _BASE_S * (1 << doublings) + chance() * _JITTER_S)


class Carrier:
    """Retries what may succeed later; everything else is raised at once."""

    def __init__(
        self,
        breaker: Breaker | None,
        *,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.breaker = breaker
        self._chance = chance
        self._sleep = sleep

    async def carry(self, attempt: Callable[[], Awaitable[T]], wanted: Callable[[], bool]) -> T:
        """Make the call; after a passing fault make it again while it is `wanted`."""
        try:
            # The usual case, without the machinery of retrying.
            return await (attempt() if self.breaker is None else self._once(attempt))
        except _PASSING as fault:
            if not wanted():
                raise
            await self._sleep(self._pause(fault, 1))
        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(_PASSING),
            wait=self._pause_of,
            stop=lambda _: not wanted(),
            sleep=self._sleep,
            reraise=True,
        ):
            with turn:
                return await self._once(attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        if self.breaker is None:
            return await attempt()
        with self.breaker.passing():
            return await attempt()

    def _pause_of(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        return self._pause(state.outcome.exception(), state.attempt_number + 1)

    def _pause(self, fault: BaseException | None, attempt: int) -> float:
        if isinstance(fault, DatabaseBusy):
            return _BUSY_S[0] + self._chance() * (_BUSY_S[1] - _BUSY_S[0])
        return backoff_s(attempt, self._chance)
