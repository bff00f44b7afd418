"""Lost rows: what a copy of the database holds, and the database itself does not, or has otherwise.

Compared are the rows of one mesh, by their keys. What only says how things stand at the moment (heartbeats,
counters, queues) is left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadStatement, DatabaseFault
from vox_mesh.store.engine import Ask
from vox_mesh.store.replica.overtaken import open_copy
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.tables import TableColumns, quoted, tables_at, tables_in
from vox_mesh.store.script import Statement

_PAGE: Final = 500
_MESH: Final = ("scope_id", "repository_id")
_LOG: Final = "agent_oplog"
_PASSING: Final = frozenset(
    {
        *("script_results", "script_answers", "lock_generations", "lock_waiters", "lock_patterns"),
        *("lock_overlaps", "node_incarnations", "mesh_heartbeats", "node_vitals", "node_versions"),
        *("store_epochs", "a2a_inboxes", "job_counts", "job_claims", "beat_pulses", "phrase_begins"),
        *("clock_witnesses", "a2a_receivers"),
    }
)
_KEYS: Final = MappingProxyType(
    {
        _LOG: ("op_id",),
        "a2a_messages": ("message_uuid",),
        "jobs": ("job_id",),
        "job_artifacts": ("hash",),
        "lock_shares": ("lock_key", "request_id"),
    }
)
_COMPARED: Final = MappingProxyType(
    {
        _LOG: ("kind", "node_id", "seq"),
        "a2a_messages": ("state", "sender_agent", "receiver_agent"),
        "jobs": ("state", "kind"),
        "distributed_locks": ("fence_token", "request_id", "holder_agent"),
        "lock_shares": ("fence_token", "holder_agent"),
        "job_artifacts": ("size", "type"),
    }
)
"""What is told of a row, and compared; of other tables, all of it."""


class LostRow(NamedTuple):
    """A row that the copy has; `now` is what the database has in its place, if anything."""

    table: str
    key: str
    lost: dict[str, Any]
    now: dict[str, Any] | None


async def lost_rows(copy: Path, scope_id: str, repository_id: str, ask: Ask) -> AsyncIterator[LostRow]:
    """Compare a copy with the database that is asked."""
    there = {table.name for table in await tables_at(ask)}
    with closing(open_copy(copy)) as connection:
        with _reading(copy):
            tables = tables_in(connection)
        for table in tables:
            if table.name not in _PASSING and set(_MESH) <= set(table.columns):
                compared = _Compared(copy, table, (scope_id, repository_id), is_there=table.name in there)
                async for row in compared.rows(connection, ask):
                    yield row


@contextmanager
def _reading(copy: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, DatabaseFault, BadStatement) as error:
        fault = f"{copy} can't be compared: {error}"
        raise DatabaseFault(fault, hint="keep it elsewhere if you need it, then discard it") from None


class _Compared:
    """One table of both."""

    def __init__(self, copy: Path, table: TableColumns, mesh: tuple[str, str], *, is_there: bool) -> None:
        self._copy = copy
        self._table = table
        self._is_there = is_there
        self._mesh = mesh
        own = tuple(name for name in table.key if name not in _MESH)
        self._key = _KEYS.get(table.name) or own or _MESH
        others = (name for name in table.columns if name not in (*_MESH, *self._key))
        self._told = _COMPARED.get(table.name) or tuple(others)
        self._columns = ", ".join(map(quoted, (*self._key, *self._told)))

    async def rows(self, connection: sqlite3.Connection, ask: Ask) -> AsyncIterator[LostRow]:
        is_log = self._table.name == _LOG
        for page in self._pages(connection, newest_first=is_log):
            known = await self._known([row[: len(self._key)] for row in page], ask)
            lost = [row for row in page if known.get(row[: len(self._key)]) != row[len(self._key) :]]
            for row in lost:
                key = row[: len(self._key)]
                now = known.get(key)
                yield LostRow(
                    self._table.name,
                    " ".join(str(_text(value)) for value in key),
                    self._record(row[len(key) :]),
                    None if now is None else self._record(now),
                )
            if is_log and len(lost) < len(page):
                return  # a log that both have up to here, both have from the beginning

    def _record(self, values: Sequence[Value]) -> dict[str, Any]:
        return dict(zip(self._told, map(_text, values), strict=True))

    def _pages(
        self, connection: sqlite3.Connection, *, newest_first: bool
    ) -> Iterator[list[tuple[Value, ...]]]:
        order = "id DESC" if newest_first else self._table.order
        is_held = " AND request_id <> ''" if self._table.name == "distributed_locks" else ""
        sql = f"SELECT {self._columns} FROM {self._table.quoted} WHERE scope_id = ? AND repository_id = ?"
        with _reading(self._copy):
            cursor = connection.execute(f"{sql}{is_held} ORDER BY {order}", self._mesh)
            while page := cursor.fetchmany(_PAGE):
                yield page

    async def _known(
        self, keys: Sequence[tuple[Value, ...]], ask: Ask
    ) -> dict[tuple[Value, ...], tuple[Value, ...]]:
        if not self._is_there:
            return {}
        names = ", ".join(map(quoted, self._key))
        marks = ", ".join([f"({', '.join('?' * len(self._key))})"] * len(keys))
        sql = (
            f"SELECT {self._columns} FROM {self._table.quoted} WHERE scope_id = ? AND repository_id = ? "
            f"AND ({names}) IN (VALUES {marks})"
        )
        rows = await ask(Statement(sql, (*self._mesh, *(value for key in keys for value in key))))
        return {tuple(row)[: len(self._key)]: tuple(row)[len(self._key) :] for row in rows}


def _text(value: Value) -> Value:
    return value.hex() if isinstance(value, bytes) else value
