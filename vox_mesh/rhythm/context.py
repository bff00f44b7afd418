"""The context shared by all parts of the rhythm: the store, the clock, its timers, and the tempo plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import Beat, Timeline
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.store import Store

_MAX_SLEEP_S: Final = 60.0
"""The longest sleep before the clock is read again: the database's clock may have been set."""


class Times:
    """The current time and timers on it. After a clock is set by hand, call `notify_clock_set`."""

    def __init__(self, clock: MeshClock) -> None:
        self._clock = clock
        self._clock_set = asyncio.Event()

    @property
    def now_ms(self) -> int:
        """The database's time, as known to this node."""
        return self._clock.now_ms

    def notify_clock_set(self) -> None:
        """Wake all timers: the clock was set."""
        self._clock_set.set()
        self._clock_set = asyncio.Event()

    async def until(self, at_ms: int, *, or_set_back: bool = False) -> None:
        """Wait until a time; with `or_set_back`, at most until the clock is set back."""
        left_ms = at_ms - self._clock.now_ms
        while left_ms > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_ms / 1_000, _MAX_SLEEP_S)):
                    await self._clock_set.wait()
            before_ms, left_ms = left_ms, at_ms - self._clock.now_ms
            if or_set_back and left_ms > before_ms:
                return

    @asynccontextmanager
    async def limit(self, at_ms: int) -> AsyncIterator[asyncio.Timeout]:
        """Cancel the block at a time, with `TimeoutError`; `expired()` is true if this limit did it."""
        async with asyncio.timeout(None) as timeout:
            alarm = asyncio.create_task(self._cut_off(at_ms, timeout), name="vox-mesh-beat-limit")
            try:
                yield timeout
            finally:
                alarm.cancel()

    async def _cut_off(self, at_ms: int, timeout: asyncio.Timeout) -> None:
        await self.until(at_ms)
        timeout.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class RhythmContext:
    """State shared by all parts of the rhythm; a newly learned plan is stored here."""

    store: Store
    writer: OpLogWriter
    clock: MeshClock
    times: Times
    permits: Permits
    agent: str | None
    """The agent this process acts for by default."""
    plan: Plan
    """Which policy is in force when, as known to this node."""
    newest_ms: int = -1
    """The latest announced anchor known to this node."""
    _last_beat: tuple[Timeline | None, Beat | None] = field(default=(None, None), init=False)

    @property
    def mesh(self) -> tuple[str, str]:
        """The scope and the repository."""
        scope_id, repository_id, _ = self.store.writer_id
        return scope_id, repository_id

    @property
    def node_id(self) -> str:
        """This node's id."""
        return self.writer.identity.node_id

    @property
    def timeline(self) -> Timeline:
        """The timeline of beats and bars."""
        return self.plan.timeline

    @property
    def entry(self) -> PlanEntry:
        """The current policy with its current tempo."""
        return self.plan.at(self.times.now_ms)

    @property
    def policy(self) -> TempoPolicy:
        """The policy in force; the current tempo may differ from its initial one."""
        return self.entry.policy

    def tick(self) -> str:
        """Return the hybrid time of a local event, now, with its author."""
        _ = self.writer.identity  # a command loads it late, and only then the clock knows the author
        return str(self.clock.tick())

    def beat(self, at_ms: int | None = None) -> Beat:
        """Return the beat at a time, by default now."""
        if at_ms is None:
            at_ms = self.times.now_ms
        timeline, (known_for, beat) = self.plan.timeline, self._last_beat
        if beat is None or timeline is not known_for or not beat.epoch_ms <= at_ms < beat.ends_ms:
            beat = timeline.beat_at(at_ms)
            self._last_beat = timeline, beat
        return beat
