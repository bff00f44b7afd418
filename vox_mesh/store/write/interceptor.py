"""Intercept batches, to log the verdict of each script in the transaction that applies it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from vox_mesh.store.engine import Engine
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.script import Outcome, Script, Statement, Verdict, WriterId
from vox_mesh.store.write.script_batch import BatchWrapper, apply_alone


class DirectDatabase(NamedTuple):
    """Direct access to the database, bypassing the write queue, for the needs of a `WriteInterceptor`."""

    engine: Engine
    writer_id: WriterId
    prepare: Callable[[], Awaitable[None]]
    prepare_again: Callable[[], Awaitable[bool]]
    """Migrates a database that was rolled back to an older schema version; returns whether it was."""

    async def ask(self, statement: Statement) -> Rows:
        """Run a query on committed data."""
        await self.prepare()
        return await self.engine.query(statement)

    async def apply(self, script: Script) -> Outcome:
        """Apply a script in its own batch."""
        await self.prepare()
        return await apply_alone(self.engine, self.writer_id, script)


class WriteInterceptor(Protocol):
    """Wraps each batch with its log entries. Called for one batch at a time."""

    def bind(self, scripts: Sequence[Script]) -> BatchWrapper | None:
        """Return the wrapper of a batch with these scripts; `None` if `prepare` must be called first.

        It stays bound until `settled` is called.
        """

    async def prepare(self, database: DirectDatabase) -> None:
        """Load from the database what `bind` needs."""

    def settled(self, rows: Sequence[Sequence[Value]]) -> None:
        """Record that the batch bound last was applied; its log entries returned these rows."""

    async def recall(self, scripts: Sequence[Script], database: DirectDatabase) -> Mapping[str, Verdict]:
        """Return the verdicts of those scripts that are already in the log, by script key."""
