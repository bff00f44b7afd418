"""Carrying a call to the database: through the breaker, again after a fault, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from vox_mesh.errors import DatabaseBusy, MeshError, NoAnswer, Unreachable
from vox_mesh.store.write.breaker import Breaker

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


class RetryingCaller:
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
        call = attempt if self.breaker is None else partial(_guarded, self.breaker, attempt)
        try:
            return await call()  # the usual case, without the machinery of retrying
        except _PASSING as fault:
            if not wanted():
                raise
            pauses = _Pauses(self._chance)
            await self._sleep(pauses.after(fault))
        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(_PASSING),
            wait=pauses,
            stop=lambda _: not wanted(),
            sleep=self._sleep,
            reraise=True,
        ):
            with turn:
                return await call()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def note(self, fault: MeshError) -> None:
        """Count a fault that nobody waited for any longer: a call that was cut off at its deadline."""
        if self.breaker is not None:
            self.breaker.note(fault)


async def _guarded(breaker: Breaker, attempt: Callable[[], Awaitable[T]]) -> T:
    with breaker.passing():
        return await attempt()


class _Pauses:
    """How long to wait after each fault of a call: the more connections failed, the longer."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._failed = 0

    def __call__(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        return self.after(state.outcome.exception())

    def after(self, fault: BaseException | None) -> float:
        """The pause after this fault; a database that is only busy is asked again soon."""
        if isinstance(fault, DatabaseBusy):
            return _BUSY_S[0] + self._chance() * (_BUSY_S[1] - _BUSY_S[0])
        self._failed += 1
        return backoff_s(self._failed, self._chance)
