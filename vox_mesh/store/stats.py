"""What a process asks of its database, counted: for whoever measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

from vox_mesh.errors import MeshError, NoAnswer, Refused, ServerFull, Unreachable
from vox_mesh.model.base.histogram import FEW, Counts, Histogram
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, Engine, EngineFacts
from vox_mesh.store.rows import Rows
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.write.request import Verdict

PING: Final = Statement(named("probe")["ping"])
"""The least that can be asked."""


@dataclass(slots=True)
class StoreStats:
    """What was sent, and how that went, since the process began."""

    requests: Counts = field(default_factory=Counts)
    """Requests to a server, by what they were for."""
    batches: Histogram = field(default_factory=lambda: Histogram(FEW))
    """How many scripts went in one request."""
    answered: int = 0
    """Scripts that the database has answered for: applied, or refused."""
    refusals: Counts = field(default_factory=Counts)
    """Those of them that it refused, by the reason."""
    failures: int = 0
    """Scripts that were not written, or not surely, for want of an answer."""
    unwritable_since: float | None = None
    """Since when, by the clock that never steps, the database fails all writes; `None`: it takes them."""
    faults: BackgroundFaults = field(default_factory=BackgroundFaults)
    """Unexpected exceptions of this process's background tasks."""

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """The database has answered a request."""
        self.answered += len(verdicts)
        self.unwritable_since = None
        for verdict in verdicts:
            if isinstance(verdict, MeshError):
                self.refusals.add(verdict.reason if isinstance(verdict, Refused) else verdict.code)


class CountedEngine:
    """A server's engine, with a count of all that is sent to it."""

    def __init__(
        self, engine: Engine, requests: Counts, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_scripts = engine.max_scripts
        self._engine = engine
        self._requests = requests
        self._monotonic = monotonic
        self.wrote: Callable[[float | None], None] = lambda asked_at: None
        """Is told when a write had been sent that was answered; `None`: one was not."""
        self.is_refused = False
        """Whether the last call ended because no connection could be made. A late answer says nothing."""

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        self._requests.add("write")
        asked_at: float | None = self._monotonic()
        try:
            result = await self._engine.run(batch)
        except BaseException as fault:  # given up when its time was over, say
            asked_at = None
            self._note(fault)
            raise
        else:
            self.is_refused = False
            return result
        finally:
            self.wrote(asked_at)

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        self._requests.add("ping" if statement is PING else "read")
        try:
            rows = await self._engine.query(statement)
        except BaseException as fault:
            self._note(fault)
            raise
        self.is_refused = False
        return rows

    def _note(self, fault: BaseException) -> None:
        if isinstance(fault, Unreachable):
            self.is_refused = not isinstance(fault, ServerFull)
        elif isinstance(fault, MeshError) and not isinstance(fault, NoAnswer):
            self.is_refused = False  # a server that is busy, or refuses a statement, has answered

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        """Several queries of one moment; they count as one."""
        self._requests.add("read")
        return self._engine.snapshot()

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        self._requests.add("read")
        return await self._engine.facts()

    async def close(self) -> None:
        """Let go of the engine's connections."""
        await self._engine.close()
