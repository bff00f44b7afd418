"""What a home must offer: to run a batch in one request, and to answer a query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Which way the database is reached."""

    driver: str
    address: str
    server: str


Ask = Callable[[Statement], Awaitable[Rows]]
"""Answers a query."""

Note = Callable[[int | None, int], None]
"""Is told, with every answer of a server, the last frame of its log and over which connection it came.

`None`: it did not say. 0: the connection is not kept.
"""


def unnoted(_frame: int | None, _connection: int) -> None:
    """For those who have no use for it."""


class Engine(Protocol):
    """One database, seen by one process.

    `Unreachable` means that nothing was sent, `NoAnswer` that something was and its effect is unknown.
    A step that fails is part of the result, not an error.
    """

    max_scripts: int
    """How many scripts are worth putting into one batch."""

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction. Cancelled before it began, it has no effect."""

    async def query(self, statement: Statement) -> Rows:
        """Answer a query from what is committed."""

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        """Several queries of one moment: each is answered from the same committed state."""

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""

    async def close(self) -> None:
        """Let go of files, threads and connections."""
