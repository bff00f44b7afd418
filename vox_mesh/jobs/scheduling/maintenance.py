"""Job maintenance: expire leases, abort jobs that wait for refused ops, and fire crons and rules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from vox_mesh.errors import DatabaseUnavailable, IllegalTransition, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.scheduling.crons import Crons
from vox_mesh.jobs.scheduling.rules import Rules
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.transitions import SQL
from vox_mesh.jobs.work.takes import forget_takes
from vox_mesh.jobs.work.task_rows import forget_tasks
from vox_mesh.model.jobs.question import EXPIRED
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.reservations import settle_overlooked
from vox_mesh.rhythm.token_ledger import forget_reservations
from vox_mesh.store.store import Store
from vox_mesh.store.watch.changes import ChangeLoop

_log = logging.getLogger(__name__)

REFUSED: Final = "an op that it waited for was refused"

_MAX_BATCH: Final = 100
_MAX_BATCHES: Final = 50
_SPREAD_S: Final = 0.25
"""The time over which the nodes spread their runs, so that later ones see the changes of earlier ones."""

_RETRY_DELAY_S: Final = 1.0
_WAITS_FACTOR: Final = 9
"""The least pause between two looks at what suspended jobs wait for, as a multiple of the time one takes."""


class _PendingWork(NamedTuple):
    """The maintenance work that is due or will be."""

    expiry_ms: int | None
    cron_ms: int | None
    awaits_ops: int
    has_rules: int
    wake_ms: int | None
    has_waits: int

    @property
    def next_ms(self) -> int | None:
        """Return the time in ms when the next work becomes due by time alone."""
        times = (None if self.expiry_ms is None else self.expiry_ms + 1, self.cron_ms, self.wake_ms)
        return min((each for each in times if each is not None), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Return whether there may be work at a time."""
        is_time = self.next_ms is not None and self.next_ms <= now_ms
        return is_time or bool(self.awaits_ops or self.has_rules or self.has_waits)

    @property
    def is_nothing(self) -> bool:
        return self.next_ms is None and not (self.awaits_ops or self.has_rules or self.has_waits)


class JobMaintenance:
    """Maintains jobs. It runs on every node concurrently."""

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        jobs: Jobs,
        crons: Crons,
        rules: Rules,
        steps: StepServices,
        chance: Callable[[], float],
        monotonic: Callable[[], float],
        *,
        tick_s: float,
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._jobs = jobs
        self._crons = crons
        self._rules = rules
        self._steps = steps
        self._chance = chance
        self._monotonic = monotonic
        self._tick_s = tick_s
        self._look_for_waits_at = 0.0
        self._ran_ms: int | None = None

    async def run(self) -> None:
        """Run maintenance until cancelled: when work becomes due, after commits, and every tick."""
        async for turn in self._store.but_heartbeats.changes():
            turn.debounce_s = _SPREAD_S * self._chance()
            self._steps.noted.clear()
            try:
                await self._schedule(turn, await self._run_turn())
            except (StaleIncarnation, StoreClosed):
                raise  # retrying is useless
            except MeshError as error:
                if not isinstance(error, DatabaseUnavailable):  # logged elsewhere
                    _log.warning("job maintenance failed: %s", error.line)
                await turn.pause(_RETRY_DELAY_S)

    async def run_once(self) -> None:
        """Do the maintenance work that is due according to the replica."""
        if self._clock.can_author:  # otherwise other nodes do it, unless the database's clock itself is wrong
            await self._crons.align()
            await self._do(await self._look())
            await self._tidy()

    async def _run_turn(self) -> _PendingWork:
        """Do the work that is due, once a tick all of it; return what is left.

        All nodes have a turn after a commit while jobs run: it is a single query if nothing is due.
        """
        now_ms = self._clock.now_ms
        if self._ran_ms is None or not 0 <= now_ms - self._ran_ms < self._tick_s * 1_000:
            await self.run_once()
            self._ran_ms = now_ms
        else:
            work = await self._look()
            if not (self._clock.can_author and work.is_due(now_ms)):
                return work
            await self._crons.align()
            await self._do(work)
        return await self._look()

    async def _do(self, work: _PendingWork) -> None:
        now_ms = self._clock.now_ms
        if work.expiry_ms is not None and work.expiry_ms < now_ms:
            await self._expire()
        if work.awaits_ops:
            await self._abort_blocked()
        if work.cron_ms is not None and work.cron_ms <= now_ms:
            await self._crons.fire_due()
        if work.has_rules:
            await self._rules.fire()
        is_time = work.wake_ms is not None and work.wake_ms <= now_ms
        if is_time or (work.has_waits and self._monotonic() >= self._look_for_waits_at):
            await self._keep_suspended()

    async def _keep_suspended(self) -> None:
        """Wake the jobs that have waited for what has come, and clean up after aborted ones.

        The more of them there are, the less often.
        """
        began = self._monotonic()
        for _ in range(_MAX_BATCHES):
            if not await self._steps.waits.wake_due():
                break
        await self._steps.cleanups.run_due()
        now = self._monotonic()
        self._look_for_waits_at = now + _WAITS_FACTOR * (now - began)

    async def _tidy(self) -> None:
        """Keep questions, and remove what is over."""
        await self._keep_questions()
        await self._steps.waits.forget()
        await self._steps.cleanups.forget()
        await forget_takes(self._store)
        await forget_tasks(self._store, self._clock.now_ms)
        await forget_reservations(self._store)
        await settle_overlooked(self._store)

    async def _look(self) -> _PendingWork:
        return _PendingWork._make((await self._store.read(SQL["next_maintenance"], self._mesh))[0])

    async def _schedule(self, turn: ChangeLoop, work: _PendingWork) -> None:
        """Start the next turn when there may be work."""
        if work.is_nothing:  # watching commits has a cost on some backends, and the next tick is soon
            if await self._steps.is_noted_within(self._tick_s):
                turn.wait_at_most(self._tick_s)
            else:
                turn.wake()
            return
        wait_s = self._tick_s
        if work.next_ms is not None:
            ahead_s = (work.next_ms - self._clock.now_ms) / 1_000
            if ahead_s <= 0:  # it failed: pause before the next attempt
                await turn.pause(_RETRY_DELAY_S)
                return
            wait_s = min(wait_s, ahead_s)
        turn.wait_at_most(wait_s)

    async def _expire(self) -> None:
        """Return the jobs with expired leases to the queue."""
        with suppress(IllegalTransition):  # another node was first; the next run sees the rest
            for _ in range(_MAX_BATCHES):
                overdue = await self._jobs.queries.overdue(_MAX_BATCH)
                if not overdue:
                    return
                if unreadable := [job.id for job in overdue if job.fault is not None]:
                    await self._jobs.quarantine(unreadable)
                expired = await self._jobs.expire([job for job in overdue if job.fault is None])
                _log.info("job leases expired: jobs=%d", len(expired))

    async def _keep_questions(self) -> None:
        """Pass questions on, abort the jobs whose questions were not answered in time, forget old ones."""
        if expired := await self._jobs.questions.pass_on_due():
            with suppress(IllegalTransition):  # another node was first
                await self._jobs.abort_for_mesh(expired, EXPIRED)
        await self._jobs.questions.forget()

    async def _abort_blocked(self) -> None:
        """Abort the jobs that wait for refused ops; an accepted op releases its jobs at once."""
        rows = await self._store.read(SQL["awaiting_refused"], (*self._mesh, _MAX_BATCH))
        if rows:
            with suppress(IllegalTransition):  # another node was first
                await self._jobs.abort_for_mesh([row[0] for row in rows], REFUSED)
