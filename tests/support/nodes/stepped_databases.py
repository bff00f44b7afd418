"""Databases whose clock a test can set while nodes are at work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tools.faketime import SettableClock
from tools.homes import MESH
from tools.install_faketime import NoFaketime
from tools.sqld import Server
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.memory import SharedMemory

HOUR_S: Final = 3_600.0

_true_ms: Final = Dependencies().wall_ms


class SteppedDatabase(NamedTuple):
    """A database, and how its clock is set: this many seconds ahead of the machine's."""

    engine: Engine
    set_ahead: Callable[[float], None]


@asynccontextmanager
async def in_memory(_: Path) -> AsyncIterator[SteppedDatabase]:
    """SQLite with a clock that is passed in."""
    ahead_ms = 0

    def set_ahead(seconds: float) -> None:
        nonlocal ahead_ms
        ahead_ms = round(seconds * 1_000)

    memory = SharedMemory(lambda: _true_ms() + ahead_ms)
    try:
        yield SteppedDatabase(memory, set_ahead)
    finally:
        await memory.drop()


def clock_in(folder: Path) -> SettableClock:
    """A clock for a server; the test is skipped where there is no libfaketime."""
    try:
        return SettableClock(folder)
    except NoFaketime as reason:
        pytest.skip(str(reason))


@asynccontextmanager
async def on_server(folder: Path) -> AsyncIterator[SteppedDatabase]:
    """A real server under libfaketime."""
    clock = clock_in(folder)
    with Server(environment=clock.environment) as server:
        engine = await open_engine(MESH.settings(folder, server))
        try:
            yield SteppedDatabase(engine, clock.set_ahead)
        finally:
            await engine.close()


BOTH: Final = pytest.mark.parametrize("database_of", [in_memory, on_server])
