"""The keeper of jobs: takes back what nobody renews, ends what waits in vain, fires what is due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from vox_mesh.errors import DatabaseUnavailable, IllegalTransition, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.jobs.crons import Crons
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.transitions import SQL
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

REFUSED: Final = "an op that it waited for was refused"

_AT_ONCE: Final = 100
_PARTS: Final = 50
_SPREAD_S: Final = 0.25
"""Nodes that see the same come one after the other, within this time: the second sees what the first did."""

_AGAIN_S: Final = 1.0


class _ToKeep(NamedTuple):
    """What there is to look after."""

    expiry_ms: int | None
    cron_ms: int | None
    awaits_ops: int

    @property
    def next_ms(self) -> int | None:
        """When time alone makes something due."""
        times = (None if self.expiry_ms is None else self.expiry_ms + 1, self.cron_ms)
        return min((each for each in times if each is not None), default=None)

    @property
    def is_nothing(self) -> bool:
        return self.next_ms is None and not self.awaits_ops


class JobKeeper:
    """Keeps jobs in order. Every node does so, at the same time."""

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        jobs: Jobs,
        crons: Crons,
        *,
        chance: Callable[[], float],
        tick_s: float,
    ) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._clock = clock
        self._jobs = jobs
        self._crons = crons
        self._chance = chance
        self._tick_s = tick_s

    async def run(self) -> None:
        """Do what there is to do, for ever: when its time comes, after commits, and with every tick."""
        while True:
            seen = self._store.change_count
            try:
                await self.run_once()
                await self._rest(await self._look(), seen)
            except (StaleIncarnation, StoreClosed):
                raise  # of no use to try again
            except MeshError as error:
                if not isinstance(error, DatabaseUnavailable):  # others tell of that
                    _log.warning("the jobs could not be kept in order: %s", error.line)
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(_SPREAD_S * self._chance())

    async def run_once(self) -> None:
        """Do what there is to do, as far as our copy of the database shows."""
        if not self._clock.can_author:
            return  # others do it, or nobody while the database's clock is in doubt
        kept = await self._look()
        now_ms = self._clock.now_ms
        if kept.expiry_ms is not None and kept.expiry_ms < now_ms:
            await self._expire()
        if kept.awaits_ops:
            await self._end_hopeless()
        if kept.cron_ms is not None and kept.cron_ms <= now_ms:
            await self._crons.fire_due()

    async def _look(self) -> _ToKeep:
        return _ToKeep._make((await self._store.read(SQL["to_keep"], self._mesh))[0])

    async def _rest(self, kept: _ToKeep, seen: int) -> None:
        """Wait until there may be something to do."""
        if kept.is_nothing:  # to hear of commits is not free on every home, and the next tick is soon
            await asyncio.sleep(self._tick_s)
            return
        wait_s = self._tick_s
        if kept.next_ms is not None:
            ahead_s = (kept.next_ms - self._clock.now_ms) / 1_000
            if ahead_s <= 0:  # we could not do it: nobody is to be asked without a pause
                await asyncio.sleep(_AGAIN_S)
                return
            wait_s = min(wait_s, ahead_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._store.changed(seen)

    async def _expire(self) -> None:
        """Take back the jobs whose lease has run out."""
        with suppress(IllegalTransition):  # another node was first; what is left, the next look shows
            for _ in range(_PARTS):
                overdue = await self._jobs.roster.overdue(_AT_ONCE)
                if not overdue:
                    return
                taken = await self._jobs.expire(overdue)
                _log.info("the leases of %d jobs ran out", len(taken))

    async def _end_hopeless(self) -> None:
        """End the jobs that wait for ops which were refused; those that are accepted release them at once."""
        rows = await self._store.read(SQL["awaiting_refused"], (*self._mesh, _AT_ONCE))
        if rows:
            with suppress(IllegalTransition):  # another node was first
                await self._jobs.abort(*(row[0] for row in rows), reason=REFUSED)
