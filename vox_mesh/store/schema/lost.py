"""Find lost rows: rows of a copy that the database itself does not have, or has with other values.

The rows of one mesh are compared by their keys. Tables of transient state (heartbeats, counters, queues) are
left out.
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

_PAGE_ROWS: Final = 500
_MESH_COLUMNS: Final = ("scope_id", "repository_id")
_LOG: Final = "agent_oplog"
_TRANSIENT_TABLES: Final = frozenset(
    {
        *("script_results", "script_answers", "lock_generations", "lock_waiters", "lock_patterns"),
        *("lock_overlaps", "node_incarnations", "mesh_heartbeats", "node_vitals", "node_versions"),
        *("store_epochs", "a2a_inboxes", "job_counts", "job_claims", "beat_pulses", "phrase_begins"),
        *("clock_witnesses", "a2a_receivers", "lock_sessions"),
    }
)
_KEY_COLUMNS: Final = MappingProxyType(
    {
        _LOG: ("op_id",),
        "a2a_messages": ("message_uuid",),
        "jobs": ("job_id",),
        "job_artifacts": ("hash",),
        "lock_shares": ("lock_key", "request_id"),
    }
)
_COMPARED_COLUMNS: Final = MappingProxyType(
    {
        _LOG: ("kind", "node_id", "seq"),
        "a2a_messages": ("state", "sender_agent", "receiver_agent"),
        "jobs": ("state", "kind"),
        "distributed_locks": ("fence_token", "request_id", "holder_agent"),
        "lock_shares": ("fence_token", "holder_agent"),
        "job_artifacts": ("size", "type"),
    }
)
"""The columns that are reported and compared; of other tables, all columns."""


class LostRow(NamedTuple):
    """A row of the copy; `now` is the database's row with the same key, if there is one."""

    table: str
    key: str
    lost: dict[str, Any]
    now: dict[str, Any] | None


async def lost_rows(copy: Path, scope_id: str, repository_id: str, ask: Ask) -> AsyncIterator[LostRow]:
    """Yield the rows of a copy that the queried database does not have."""
    table_names = {table.name for table in await tables_at(ask)}
    with closing(open_copy(copy)) as connection:
        with _convert_errors(copy):
            tables = tables_in(connection)
        for table in tables:
            if table.name not in _TRANSIENT_TABLES and set(_MESH_COLUMNS) <= set(table.columns):
                comparison = _TableComparison(
                    copy, table, (scope_id, repository_id), exists=table.name in table_names
                )
                async for row in comparison.rows(connection, ask):
                    yield row


@contextmanager
def _convert_errors(copy: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, DatabaseFault, BadStatement) as error:
        fault = f"{copy} can't be compared: {error}"
        raise DatabaseFault(fault, hint="keep it elsewhere if you need it, then discard it") from None


class _TableComparison:
    """The comparison of one table in both databases."""

    def __init__(self, copy: Path, table: TableColumns, mesh: tuple[str, str], *, exists: bool) -> None:
        self._copy = copy
        self._table = table
        self._exists = exists
        self._mesh = mesh
        own = tuple(name for name in table.key if name not in _MESH_COLUMNS)
        self._key = _KEY_COLUMNS.get(table.name) or own or _MESH_COLUMNS
        others = (name for name in table.columns if name not in (*_MESH_COLUMNS, *self._key))
        self._compared = _COMPARED_COLUMNS.get(table.name) or tuple(others)
        self._columns = ", ".join(map(quoted, (*self._key, *self._compared)))

    async def rows(self, connection: sqlite3.Connection, ask: Ask) -> AsyncIterator[LostRow]:
        is_log = self._table.name == _LOG
        for page in self._pages(connection, newest_first=is_log):
            known = await self._current_values([row[: len(self._key)] for row in page], ask)
            lost = [row for row in page if known.get(row[: len(self._key)]) != row[len(self._key) :]]
            for row in lost:
                key = row[: len(self._key)]
                now = known.get(key)
                yield LostRow(
                    self._table.name,
                    " ".join(str(_as_text(value)) for value in key),
                    self._record(row[len(key) :]),
                    None if now is None else self._record(now),
                )
            if is_log and len(lost) < len(page):
                return  # logs that agree at one entry agree on all earlier ones

    def _record(self, values: Sequence[Value]) -> dict[str, Any]:
        return dict(zip(self._compared, map(_as_text, values), strict=True))

    def _pages(
        self, connection: sqlite3.Connection, *, newest_first: bool
    ) -> Iterator[list[tuple[Value, ...]]]:
        order = "id DESC" if newest_first else self._table.order
        is_held = " AND request_id <> ''" if self._table.name == "distributed_locks" else ""
        sql = f"SELECT {self._columns} FROM {self._table.quoted} WHERE scope_id = ? AND repository_id = ?"
        with _convert_errors(self._copy):
            cursor = connection.execute(f"{sql}{is_held} ORDER BY {order}", self._mesh)
            while page := cursor.fetchmany(_PAGE_ROWS):
                yield page

    async def _current_values(
        self, keys: Sequence[tuple[Value, ...]], ask: Ask
    ) -> dict[tuple[Value, ...], tuple[Value, ...]]:
        if not self._exists:
            return {}
        names = ", ".join(map(quoted, self._key))
        marks = ", ".join([f"({', '.join('?' * len(self._key))})"] * len(keys))
        sql = (
            f"SELECT {self._columns} FROM {self._table.quoted} WHERE scope_id = ? AND repository_id = ? "
            f"AND ({names}) IN (VALUES {marks})"
        )
        rows = await ask(Statement(sql, (*self._mesh, *(value for key in keys for value in key))))
        return {tuple(row)[: len(self._key)]: tuple(row)[len(self._key) :] for row in rows}


def _as_text(value: Value) -> Value:
    return value.hex() if isinstance(value, bytes) else value
