"""A real engine behind a gate: its requests can be held, or lost on the way there or back."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager

from vox_mesh.errors import DatabaseFault, DatabaseUnavailable
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, Engine, EngineFacts
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


class GatedEngine:
    """Everything that gets through is run by the real engine.

    `batches` holds every batch that was sent, in order. Faults in `before` are raised instead of running
    a batch (`None` lets one through), those in `after` once it has been run, those in `asking` instead of
    answering a query. This many batches as `doubled` says are run twice; the second run is what is answered.
    """

    def __init__(self, engine: Engine) -> None:
        self.max_scripts = engine.max_scripts
        self.batches: list[Batch] = []
        self.before: deque[DatabaseFault | DatabaseUnavailable | None] = deque()
        self.after: deque[DatabaseUnavailable] = deque()
        self.asking: deque[DatabaseUnavailable | None] = deque()
        self.doubled = 0
        self._engine = engine
        self._is_held = False
        self._waiting = 0
        self._passes = asyncio.Semaphore(0)
        self._arrived = asyncio.Event()

    def hold(self) -> None:
        """Let no batch through from now on."""
        self._is_held = True

    def release(self) -> None:
        """Let the ones that wait, and all others, through."""
        self._is_held = False
        for _ in range(self._waiting):
            self._passes.release()

    def release_one(self) -> None:
        """Let the batch that stands at the gate through, and hold the next."""
        self._arrived.clear()
        self._passes.release()

    async def arrival(self) -> None:
        """Wait until a batch stands at the closed gate."""
        await asyncio.wait_for(self._arrived.wait(), 10)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch when the gate is open, and lose what is to be lost."""
        self.batches.append(batch)
        if self._is_held:
            self._arrived.set()
            self._waiting += 1
            try:
                await self._passes.acquire()
            finally:
                self._waiting -= 1
        if self.before and (fault := self.before.popleft()) is not None:
            raise fault
        if self.doubled:
            self.doubled -= 1
            await self._engine.run(batch)
        result = await self._engine.run(batch)
        if self.after:
            raise self.after.popleft()
        return result

    async def query(self, statement: Statement) -> Rows:
        """Answer a query, if it is to be answered."""
        if self.asking and (fault := self.asking.popleft()) is not None:
            raise fault
        return await self._engine.query(statement)

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        """Several queries of one moment."""
        return self._engine.snapshot()

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        return await self._engine.facts()

    async def close(self) -> None:
        """Close the real engine."""
        await self._engine.close()
