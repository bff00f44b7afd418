"""Count a process's requests to its database, for metrics."""

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
from vox_mesh.store.script import Statement, Verdict

PING: Final = Statement(named("probe")["ping"])
"""The cheapest query."""


@dataclass(slots=True)
class StoreStats:
    """Counters of requests and their results since the process started."""

    requests: Counts = field(default_factory=Counts)
    """Requests to a server, by purpose."""
    batches: Histogram = field(default_factory=lambda: Histogram(FEW))
    """The number of scripts per batch."""
    answered: int = 0
    """Scripts that the database has applied or refused."""
    refusals: Counts = field(default_factory=Counts)
    """Refused scripts, by reason."""
    failures: int = 0
    """Scripts that failed, or whose outcome is unknown, because no answer came."""
    unwritable_since: float | None = None
    """The monotonic time since which the database fails all writes; `None` while writes succeed."""
    faults: BackgroundFaults = field(default_factory=BackgroundFaults)
    """Unexpected exceptions of this process's background tasks."""

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Count the answers to a batch."""
        self.answered += len(verdicts)
        self.unwritable_since = None
        for verdict in verdicts:
            if isinstance(verdict, MeshError):
                self.refusals.add(verdict.reason if isinstance(verdict, Refused) else verdict.code)


class CountedEngine:
    """A server's engine that counts all requests."""

    def __init__(
        self, engine: Engine, requests: Counts, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_scripts = engine.max_scripts
        self._engine = engine
        self._requests = requests
        self._monotonic = monotonic
        self.on_write: Callable[[float | None], None] = lambda asked_at: None
        """Called after each write with the time at which it was sent; `None` if it was not answered."""
        self.is_refused = False
        """Whether the last call failed because no connection could be made. A late answer does not count."""

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        self._requests.add("write")
        asked_at: float | None = self._monotonic()
        try:
            result = await self._engine.run(batch)
        except BaseException as fault:  # also when cancelled at its deadline
            asked_at = None
            self._note(fault)
            raise
        else:
            self.is_refused = False
            return result
        finally:
            self.on_write(asked_at)

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
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
            self.is_refused = False  # a busy server, or one that refuses a statement, is reachable

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        """Return a context in which all queries see the same committed state; it counts as one request."""
        self._requests.add("read")
        return self._engine.snapshot()

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        self._requests.add("read")
        return await self._engine.facts()

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._engine.close()
