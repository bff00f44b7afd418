"""The limit watch: one timer for the limits of all attempts of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from vox_mesh.jobs.worker.metering import Meter
from vox_mesh.rhythm.budgets import Budgets, BudgetStanding
from vox_mesh.rhythm.context import RhythmContext

_log = logging.getLogger(__name__)

FIRST_CHECK_MS: Final = 50
"""How long after its start the limits of an attempt are first checked, or a beat if that is shorter."""


class Watched(Protocol):
    """An attempt with limits."""

    meter: Meter

    def check(self, now_ms: int, standings: Mapping[str, BudgetStanding]) -> int:
        """Stop the attempt if a limit is exceeded. Return the time of the next check, in ms."""

    def begin_phrase(self) -> None:
        """Create the phrase and claim that it has begun, unless that was done before."""

    def stop_unchecked(self, error: Exception) -> None:
        """Stop the attempt, because its limits can't be checked."""


class LimitWatch:
    """Checks the limits of the running attempts. It sleeps while there are none."""

    def __init__(self, context: RhythmContext, budgets: Budgets) -> None:
        self._context = context
        self._budgets = budgets
        self._next_ms: dict[Watched, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, attempt: Watched, now_ms: int) -> None:
        """Watch an attempt that starts."""
        delay_ms = min(FIRST_CHECK_MS, self._context.beat(now_ms).beat_ms)
        self._next_ms[attempt] = now_ms + delay_ms
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._start)

    def remove(self, attempt: Watched) -> None:
        """Leave an attempt alone: it has ended."""
        self._next_ms.pop(attempt, None)
        if not self._next_ms and self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def attempts(self) -> list[Watched]:
        """The watched attempts."""
        return list(self._next_ms)

    async def check_all(self) -> None:
        """Check all attempts now, for example after the clock was set."""
        if self._next_ms:
            await self._check(list(self._next_ms))

    def _start(self) -> None:
        """Check the attempts that have become due, and go on until there are none left."""
        self._timer = None
        if self._task is not None:
            self._task.cancel()  # it may wait for longer than a new attempt does
            self._task = None
        if self._next_ms:
            self._task = asyncio.create_task(self._run(), name="vox-mesh-limits")

    async def _run(self) -> None:
        times = self._context.times
        while self._next_ms:
            now_ms = times.now_ms
            await self._check([each for each, at_ms in self._next_ms.items() if at_ms <= now_ms])
            if self._next_ms:
                await times.until(min(self._next_ms.values()))

    async def _check(self, due: Iterable[Watched]) -> None:
        meters = [each.meter for each in due if each.meter.is_sampling]
        if meters:
            await asyncio.to_thread(_sample, meters)
        standings = await self._budgets.standings()
        now_ms = self._context.times.now_ms
        for each in due:
            if each not in self._next_ms:  # it has ended meanwhile
                continue
            try:
                self._next_ms[each] = each.check(now_ms, standings)
            except Exception as error:
                _log.exception("job limits not enforceable")
                each.stop_unchecked(error)


def _sample(meters: Iterable[Meter]) -> None:
    for meter in meters:
        meter.sample()
