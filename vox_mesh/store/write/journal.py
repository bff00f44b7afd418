"""A journal: keeps a log of what became of scripts, in the transactions that apply them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vox_mesh.store.engine import Engine
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.script import Outcome, Script, Statement
from vox_mesh.store.write.envelope import RequestWrapper
from vox_mesh.store.write.request import Tenant, Verdict, apply_alone


@dataclass(frozen=True, slots=True)
class DirectDatabase:
    """The database itself, past the queue: for what a journal must know or do before a request can go."""

    engine: Engine
    tenant: Tenant
    prepare: Callable[[], Awaitable[None]]
    prepare_again: Callable[[], Awaitable[bool]]
    """Migrate a database that has gone back to an earlier schema version; whether it had."""

    async def ask(self, statement: Statement) -> Rows:
        """Answer a query from what is committed."""
        await self.prepare()
        return await self.engine.query(statement)

    async def apply(self, script: Script) -> Outcome:
        """Apply a script in a request of its own."""
        await self.prepare()
        return await apply_alone(self.engine, self.tenant, script)


class WriteInterceptor(Protocol):
    """Called by whoever sends requests, for one request after another, never for two at once."""

    def bind(self, scripts: Sequence[Script]) -> RequestWrapper | None:
        """The frame of a request with these scripts, until it is `settled`; `None`: `prepare` it first."""

    async def prepare(self, desk: DirectDatabase) -> None:
        """Learn from the database what must be known to bind anything."""

    def settled(self, rows: Sequence[Sequence[Value]]) -> None:
        """The request bound last was applied, and its entries returned these rows."""

    async def recall(self, scripts: Sequence[Script], desk: DirectDatabase) -> Mapping[str, Verdict]:
        """What the log says of those of the scripts that are in it already, by their keys."""
