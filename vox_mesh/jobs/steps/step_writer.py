"""The writer of steps: what the attempts of a node append at the same time is stored by one statement."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any, Final, Protocol

from vox_mesh.errors import MeshError
from vox_mesh.jobs.steps.job_steps import AppendedRows, JobSteps, append_if_held
from vox_mesh.jobs.steps.settled_writes import write_steps
from vox_mesh.model.jobs.steps.step_row import StepRow
from vox_mesh.model.nodes.features import SHARED_SIGNATURES
from vox_mesh.store.script import Outcome
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 2**20
"""How much is stored at once, of one attempt and of several."""


class StepSource(Protocol):
    """The steps of an attempt."""

    def take(self) -> AppendedRows | None:
        """Return what is to be appended now, unsigned, or `None` if nothing can share a write with others."""

    def settle(self, stored: Sequence[StepRow] | None) -> None:
        """Take notice of the rows as they are stored, or that not all of them are."""


class StepWriter:
    """Stores what attempts append. What comes during a write forms the next one."""

    def __init__(
        self, store: Store, steps: JobSteps, is_known_to_all: Callable[[int], Awaitable[bool]]
    ) -> None:
        """`is_known_to_all`: whether all live nodes know a schema version."""
        self._store = store
        self._steps = steps
        self._is_known_to_all = is_known_to_all
        self._waiting: dict[StepSource, None] = {}
        self._taken: dict[StepSource, AppendedRows] = {}
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()  # that of the node: what it writes is not of one attempt

    def submit(self, source: StepSource) -> None:
        """Store what an attempt is to append, and let it `settle`."""
        self._waiting[source] = None
        if self._task is None:
            self._start()

    async def withdraw(self, source: StepSource) -> None:
        """Store nothing more of an attempt. What is being stored may be stored nevertheless."""
        self._waiting.pop(source, None)
        is_last = self._taken.pop(source, None) is not None and not self._taken
        if is_last and (task := self._task) is not None:
            task.cancel()
            task.add_done_callback(self._go_on)
            await asyncio.wait([task])

    def _go_on(self, _: asyncio.Task[None]) -> None:
        """Store what others have appended since, also if the one that withdraws is itself cancelled."""
        if self._waiting and self._task is None:
            self._start()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._write_all(), name="vox-mesh-steps", context=self._context)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                self._take()
                if self._taken:
                    await self._write()
        finally:
            self._task = None

    def _take(self) -> None:
        """Take what waits, as much as one write may have."""
        left = MAX_BYTES
        while self._waiting and left > 0:
            source = next(iter(self._waiting))
            del self._waiting[source]
            if (appended := source.take()) is not None:
                self._taken[source] = appended
                left -= appended.weight

    async def _write(self) -> None:
        appended, stored = [*self._taken.values()], Counter[tuple[Any, ...]]()
        of = f"job_id={appended[0].job.job_id}" if len(appended) == 1 else f"jobs={len(appended)}"
        try:
            appended = await self._signed(appended)
            verdict = await write_steps(self._store, append_if_held(appended), of)
            if isinstance(verdict, Outcome):
                stored.update(tuple(row) for row in verdict.rows)
        except Exception:  # each attempt writes alone then, and learns what is wrong
            _log.exception("steps not stored together: %s", of)
        signed = {each.attempt: each.rows for each in appended}
        taken, self._taken = self._taken, {}
        for source, each in taken.items():
            attempt = each.attempt
            source.settle(signed[attempt] if stored[attempt] == len(each.rows) else None)

    async def _signed(self, appended: Sequence[AppendedRows]) -> list[AppendedRows]:
        """Return the rows with signatures that all live nodes understand."""
        if len(appended) > 1 and await self._may_share():
            return self._steps.signed_together(appended)
        return [each._replace(rows=self._steps.signed(each.job.job_id, each.rows)) for each in appended]

    async def _may_share(self) -> bool:
        try:
            return await self._is_known_to_all(SHARED_SIGNATURES)
        except MeshError:  # the database may be away: that is noticed when the rows are written
            return False
