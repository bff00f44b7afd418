"""Simulated time: the clocks of a node and of its database file stand still until they are advanced."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.engines.sqlite import SqliteClock


class SimulatedTime:
    """One time for a process and for the connections that it opens to one database file."""

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self._clocks: list[SqliteClock] = []
        self.now_ms = time.time_ns() // 1_000_000

    def advance(self, milliseconds: int) -> None:
        """Advance all clocks. Do so only while no request is under way."""
        self.now_ms += milliseconds
        for clock in self._clocks:
            clock.begin()

    def dependencies(self) -> Dependencies:
        """Return the dependencies of a node with these clocks."""
        return Dependencies(lambda: self.now_ms, self._monotonic, elapsed=self._monotonic)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have every connection to the database that is opened meanwhile use this time."""
        connect = sqlite3.connect

        def connect_with_clock(database: Any, *more: Any, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(database, *more, **named)
            if self._database in str(database):
                clock = SqliteClock(lambda: self.now_ms)
                clock.install(connection)
                self._clocks.append(clock)
            return connection

        sqlite3.connect = connect_with_clock  # type: ignore[assignment]
        try:
            yield
        finally:
            sqlite3.connect = connect

    def _monotonic(self) -> float:
        return self.now_ms / 1_000
