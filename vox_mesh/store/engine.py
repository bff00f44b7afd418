"""Define the interface of a backend: run a batch in one request, answer a query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How the database is reached."""

    driver: str
    address: str
    server: str


class Space(NamedTuple):
    """The pages of a database file. Free ones are filled by new rows, or given back to the file system."""

    pages: int
    free_pages: int
    page_bytes: int
    can_shrink: bool
    """Whether it was created, or compacted, so that free pages can be given back."""


Ask = Callable[[Statement], Awaitable[Rows]]
"""Runs a query and returns its rows."""

Note = Callable[[int | None, int, bool], None]
"""Called with each server answer: the last frame of the server's log, the number of the connection, and
whether it answers a query.

The frame is `None` if the server did not report it; the connection is 0 if it is not kept open.
"""


def ignore_note(_frame: int | None, _connection: int, _is_query: bool) -> None:
    """Do nothing: a `Note` for callers that do not track log positions."""


class Engine(Protocol):
    """One process's connection to one database.

    `Unreachable` means that nothing was sent, `NoAnswer` that the outcome of what was sent is unknown.
    A failed step is part of the result and raises nothing.
    """

    max_scripts: int
    """The number of scripts above which a larger batch gains nothing."""

    def run(self, batch: Batch) -> Awaitable[BatchResult]:
        """Run the batch's transaction. If cancelled before it began, it has no effect."""

    async def query(self, statement: Statement) -> Rows:
        """Run a query on committed data."""

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        """Return a context in which all queries see the same committed state."""

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""

    async def close(self) -> None:
        """Release files, threads and connections."""


@runtime_checkable
class ShrinkingEngine(Protocol):
    """An engine whose database is a file that can shrink."""

    async def space(self) -> Space:
        """Return how much of the file is free."""

    async def shrink(self, pages: int) -> None:
        """Give up to this number of free pages back to the file system."""
