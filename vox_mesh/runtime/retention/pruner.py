"""The pruner: one pass through what is past its policy, in small batches, for one leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vox_mesh.errors import Overloaded, Refused
from vox_mesh.model.retention.policies import RetentionPolicies
from vox_mesh.model.retention.pruning import Bounds, PrunableRow, batches, removable
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.runtime.retention.sweep import NEEDED, PAGE, SQL, Sweep
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

Guard = Callable[[], Awaitable[Statement]]
"""Returns the guard of each write: it fails unless this process still leads."""

_CHANGED: Final = Answer(SQL["changed"], columns=("changed",))
_MAX_LAPS: Final = 10
_REST: Final = 3
"""How many times as long as a batch took the pruner rests after it, so that others write meanwhile."""

_MIN_REST_S: Final = 0.005
_MAX_REST_S: Final = 1.0
_MAX_WAIT_S: Final = 5.0
"""How long it waits for writes that are queued, before it ends the pass."""


class Limits(NamedTuple):
    """How much one pass does: it ends after these, and the next one continues."""

    rows: int
    """The rows that are looked at, of each subject."""
    seconds: float


class Swept(NamedTuple):
    """The result of the sweep of one subject."""

    subject: str
    pruned: int
    """The rows that were pruned, or would be."""
    needed: int
    """The rows past their policy that something still needs."""
    position: int
    """Where the next sweep continues; 0: it has reached the end."""

    @property
    def is_complete(self) -> bool:
        """Return whether it has reached the end."""
        return self.position == 0


@dataclass
class _Lap:
    position: int
    pruned: int = 0
    needed: int = 0
    seen: int = 0
    gone: set[str] = field(default_factory=set)


class Pruner:
    """Prunes for a leader. Without a guard it prunes nothing, and says what it would prune."""

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        policies: RetentionPolicies,
        guard: Guard | None,
        limits: Limits,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._clock = clock
        self._policies = policies
        self._guard = guard
        self._limits = limits
        self._monotonic = monotonic
        self._until = monotonic() + limits.seconds
        self.is_held_up = False
        """Whether it has ended early because other writes are queued."""

    async def sweep_to_end(self, sweep: Sweep) -> Swept:
        """Sweep a subject from the beginning, and again while that frees more rows."""
        whole = _Lap(0)
        for _ in range(_MAX_LAPS):
            lap = _Lap(0, gone=whole.gone)
            await self._go(sweep, lap)
            whole.pruned += lap.pruned
            whole.needed, whole.position = lap.needed, lap.position
            if lap.position or not (lap.pruned and lap.needed):
                break
        return Swept(sweep.subject, whole.pruned, whole.needed, whole.position)

    async def sweep(self, sweep: Sweep, position: int) -> Swept:
        """Sweep a subject from a position on, up to the limits."""
        lap = _Lap(position)
        await self._go(sweep, lap)
        return Swept(sweep.subject, lap.pruned, lap.needed, lap.position)

    @property
    def is_over(self) -> bool:
        """Return whether the pass has taken its time, or others wait to write."""
        return self.is_held_up or self._monotonic() >= self._until

    async def keep_up(self, names: Sequence[str]) -> None:
        """Run statements that each prune up to a page of rows, until none are left or the pass is over."""
        if self._guard is None:
            return
        for name in names:
            changed = PAGE
            while changed == PAGE and not self.is_over:
                statement = Statement(SQL[name], (*self._store.mesh_id, PAGE))
                began = self._monotonic()
                outcome = await self._store.write(Script(await self._guard(), statement, answer=_CHANGED))
                changed = outcome.rows.value
                await self._rest(self._monotonic() - began)

    async def _go(self, sweep: Sweep, lap: _Lap) -> None:
        await self.keep_up(sweep.upkeep)
        bounds = await sweep.bounds(self._store, self._policies, self._clock.now_ms)
        while not self.is_over and lap.seen < self._limits.rows:
            rows = await sweep.page(self._store, lap.position, bounds)
            await self._prune(sweep, bounds, rows, lap)
            if self.is_over and self._guard is not None:
                return  # what is left of this page comes first the next time
            if len(rows) < PAGE or bounds.is_beyond(rows[-1]):
                lap.position = 0
                return
            lap.position = rows[-1].position
            lap.seen += len(rows)

    async def _prune(self, sweep: Sweep, bounds: Bounds, rows: Sequence[PrunableRow], lap: _Lap) -> None:
        due = [row for row in rows if bounds.is_due(row) and row.key not in lap.gone]
        free = removable(due, lap.gone)
        lap.needed += len(due) - len(free)
        for batch in batches(free, sweep.batch):
            keys = [row.key for row in batch]
            if self._guard is not None:
                if self.is_over:
                    return
                if not await self._remove(sweep, keys, self._guard):
                    lap.needed += len(keys)
                    continue
            lap.pruned += len(keys)
            lap.gone.update(keys)

    async def _remove(self, sweep: Sweep, keys: Sequence[str], guard: Guard) -> bool:
        """Prune a batch; return whether nothing needed it."""
        while True:
            began = self._monotonic()
            removal = sweep.removal(self._store.mesh_id, keys, self._clock.now_ms)
            answer = None if sweep.limit is None else _CHANGED
            script = Script(await guard(), *removal.statements, answer=answer, op=removal.op)
            try:
                outcome = await self._store.write(script)
            except Refused as refused:
                if refused.reason != NEEDED:
                    raise
                _log.info("rows not pruned, one is needed again: subject=%s", sweep.subject)
                return False
            except Overloaded:
                self.is_held_up = True
                return False
            await self._rest(self._monotonic() - began)
            if sweep.limit is None or outcome.rows.value < sweep.limit or self.is_over:
                return True

    async def _rest(self, took_s: float) -> None:
        """Let others write; end the pass if the writes that are queued do not become fewer."""
        await asyncio.sleep(min(max(_REST * took_s, _MIN_REST_S), _MAX_REST_S))
        until = self._monotonic() + _MAX_WAIT_S
        while self._store.scripts_waiting:
            if self._monotonic() >= until:
                self.is_held_up = True
                return
            await asyncio.sleep(_MIN_REST_S)
