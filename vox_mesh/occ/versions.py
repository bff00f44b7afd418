"""Versions of rows: the one that is there, and a new one for every write, which no other write ever has."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from vox_mesh.errors import BadStatement, BadValue
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.occ.merge import Columns
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.occ.tables import WRITTEN_AT, RowAddress, Tables
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Outcome, Script
from vox_mesh.store.store import Store


class Versions:
    """Reads and writes rows at their places. A version is a hybrid time, compared only for being the same."""

    def __init__(
        self, store: Store, author: OpLogWriter, clock: MeshClock, nodes: Nodes, agent: str | None
    ) -> None:
        self._store = store
        self._author = author
        self._clock = clock
        self._nodes = nodes
        self._tables = Tables(store)
        self.agent = agent
        """On whose behalf this process writes, unless a caller says otherwise."""

    @property
    def node_id(self) -> str:
        """Who writes here."""
        return self._author.identity.node_id

    async def place(self, table: str, key: Columns, *rows: Columns | None) -> RowAddress:
        """The place of the row with this key, or `BadValue`; each of `rows` has columns of the table only."""
        return await self._tables.place(table, key, *rows)

    async def look(self, place: RowAddress) -> dict[str, Any] | None:
        """The row as it is now."""
        statement = place.look()
        try:
            rows = await self._store.read(statement.sql, statement.params, fresh=True)
        except BadStatement:
            self._tables.forget(place.table.name)  # it is not what it was
            raise
        row = rows[0].as_dict() if rows else None
        self._receive(row)
        return row

    async def send(self, place: RowAddress, script: Script) -> Outcome:
        """Apply a script that is about this place."""
        try:
            return await self._store.write(script)
        except BadStatement:
            self._tables.forget(place.table.name)
            raise

    async def refuse_if_off(self) -> None:
        """Raise `ClockOff` when nothing new should be authored here."""
        await self._nodes.now_ms()  # which the database tells, if it has not yet
        self._clock.refuse_if_off()

    async def next(self, seen: Columns | None) -> str:
        """A new version, later than the one that was seen. A node whose clock is off gets none."""
        await self.refuse_if_off()
        author = self._author.identity
        self._receive(seen)
        time = self._clock.tick()
        if author.is_command:
            # Any number of commands write under one name, each by a clock that knows nothing of the others'.
            time = time._replace(author=f"{author.chain}/{self._store.tenant.writer.rpartition(':')[2]}")
        return str(time)

    def _receive(self, row: Columns | None) -> None:
        time = None if row is None else hybrid_time(row)
        if time is not None:
            self._clock.receive(str(time))


def hybrid_time(row: Columns) -> Hlc | None:
    """When, and by whom, this version of a row was written; `None` if it was not written by a mesh."""
    with suppress(BadValue):
        return Hlc.parse(row[WRITTEN_AT] or "")
    return None


def writer_of(row: Columns | None) -> str | None:
    """The node that wrote this version of a row, as far as it tells."""
    time = None if row is None else hybrid_time(row)
    return None if time is None else time.author.partition("/")[0]
