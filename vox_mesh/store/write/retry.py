"""Call the database through the circuit breaker, and retry after transient faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple, Unpack

from vox_mesh.errors import DatabaseBusy, MeshError, NoAnswer, Unreachable

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from vox_mesh.store.write.breaker import Breaker

T = TypeVar("T")
Args = TypeVarTuple("Args")

_BASE_DELAY_S: Final = 0.5
_JITTER_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0
_BUSY_DELAY_S: Final = (0.005, 0.05)
_TRANSIENT: Final = (Unreachable, NoAnswer, DatabaseBusy)


def backoff_s(attempt: int, chance: Callable[[], float]) -> float:
    """Return the delay after the n-th consecutive fault: 0.5 s, doubled each time, plus jitter."""
    doublings = min(attempt - 1, 16)
    return min(_MAX_DELAY_S, _BASE_DELAY_S * (1 << doublings) + chance() * _JITTER_S)


class RetryingCaller:
    """Retries transient faults; raises everything else at once."""

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

    async def call(
        self,
        attempt: Callable[[Unpack[Args]], Awaitable[T]],
        wanted: Callable[[], bool],
        *args: *Args,
    ) -> T:
        """Make the call; after a transient fault, retry while `wanted()` is true."""
        guarded = attempt if self.breaker is None else partial(_call_guarded, self.breaker, attempt)
        try:
            return await guarded(*args)  # the usual case, without tenacity's overhead
        except _TRANSIENT as fault:
            if not wanted():
                raise
            delays = _Delays(self._chance)
            await self._sleep(delays.after(fault))
        from tenacity import AsyncRetrying, retry_if_exception_type  # imported late: most calls succeed

        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(_TRANSIENT),
            wait=delays,
            stop=lambda _: not wanted(),
            sleep=self._sleep,
            reraise=True,
        ):
            with turn:
                return await guarded(*args)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def note(self, fault: MeshError) -> None:
        """Count the fault of a call that was cancelled at its deadline."""
        if self.breaker is not None:
            self.breaker.note(fault)


async def _call_guarded(breaker: Breaker, attempt: Callable[[Unpack[Args]], Awaitable[T]], *args: *Args) -> T:
    with breaker.admit():
        return await attempt(*args)


class _Delays:
    """The delay after each fault of a call; it grows with the number of failed connections."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._failed = 0

    def __call__(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        return self.after(state.outcome.exception())

    def after(self, fault: BaseException | None) -> float:
        """Return the delay after this fault; a busy database is retried soon."""
        if isinstance(fault, DatabaseBusy):
            return _BUSY_DELAY_S[0] + self._chance() * (_BUSY_DELAY_S[1] - _BUSY_DELAY_S[0])
        self._failed += 1
        return backoff_s(self._failed, self._chance)
