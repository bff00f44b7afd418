"""Versions of rows: the current one, and a new, unique one for every write."""

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
    """Read and write rows at their addresses. A version is a hybrid time, compared only for equality."""

    def __init__(
        self, store: Store, writer: OpLogWriter, clock: MeshClock, nodes: Nodes, agent: str | None
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._nodes = nodes
        self._tables = Tables(store)
        self.agent = agent
        """The agent on whose behalf this process writes by default."""

    @property
    def node_id(self) -> str:
        """Return the id of the node that writes here."""
        return self._writer.identity.node_id

    async def locate(self, table: str, key: Columns, *rows: Columns | None) -> RowAddress:
        """Return the address of the row with this key; raise `BadValue` for unknown columns or keys."""
        return await self._tables.locate(table, key, *rows)

    async def read(self, address: RowAddress) -> dict[str, Any] | None:
        """Return the current row, or `None`."""
        statement = address.select()
        try:
            rows = await self._store.read(statement.sql, statement.params, fresh=True)
        except BadStatement:
            self._tables.forget(address.table.name)  # its columns have changed
            raise
        row = rows[0].as_dict() if rows else None
        self._merge_time(row)
        return row

    async def send(self, address: RowAddress, script: Script) -> Outcome:
        """Apply a script on the row at this address."""
        try:
            return await self._store.write(script)
        except BadStatement:
            self._tables.forget(address.table.name)
            raise

    async def refuse_if_off(self) -> None:
        """Raise `ClockOff` when nothing new should be authored here."""
        await self._nodes.now_ms()  # sets the clock, if it is not set yet
        self._clock.refuse_if_off()

    async def next(self, seen: Columns | None) -> str:
        """Return a new version, later than the one seen; raise `ClockOff` if this node's clock is off."""
        await self.refuse_if_off()
        author = self._writer.identity
        self._merge_time(seen)
        time = self._clock.tick()
        if author.is_command:
            # Commands share one name, each with a clock that does not know the others'.
            time = time._replace(author=f"{author.chain}/{self._store.writer_id.writer.rpartition(':')[2]}")
        return str(time)

    def _merge_time(self, row: Columns | None) -> None:
        time = None if row is None else hybrid_time(row)
        if time is not None:
            self._clock.receive(str(time))


def hybrid_time(row: Columns) -> Hlc | None:
    """Return the hybrid time of this version of a row; `None` if it was not written by a mesh."""
    with suppress(BadValue):
        return Hlc.parse(row[WRITTEN_AT] or "")
    return None


def writer_of(row: Columns | None) -> str | None:
    """Return the node that wrote this version of a row, if known."""
    time = None if row is None else hybrid_time(row)
    return None if time is None else time.author.partition("/")[0]
