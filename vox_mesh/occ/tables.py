"""Tables for optimistic writes: their columns and keys as the database reports them, and row addresses.

Statements on a caller's table are built here from names that the database itself reported; they never contain
text from a caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import row_text
from vox_mesh.model.occ.merge import Columns
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.schema.tables import mesh_tables
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

WRITTEN_AT: Final = "written_at"
"""The column with the version of a row."""

_SQL: Final = named("occ")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TENANCY: Final = ("scope_id", "repository_id")
_TEXT_TYPES: Final = ("CHAR", "CLOB", "TEXT")
_USER_TABLES: Final = frozenset({"memories", "agent_sessions"})


@cache
def _internal_tables() -> frozenset[str]:
    """Return the tables of the mesh that only the mesh itself writes."""
    return frozenset(table.name.lower() for table in mesh_tables()) - _USER_TABLES


@dataclass(frozen=True, slots=True)
class VersionedTable:
    """A table with row versions. `columns` are all but scope and repository, which are `tenancy`."""

    name: str
    columns: tuple[str, ...]
    tenancy: tuple[str, ...]
    keys: frozenset[frozenset[str]]

    def is_key(self, names: Iterable[str]) -> bool:
        """Return whether these columns, within a scope and repository, identify at most one row."""
        return frozenset(names) in self.keys or frozenset((*names, *self.tenancy)) in self.keys

    def own(self, row: Columns) -> dict[str, Any]:
        """Return the row without its tenancy columns."""
        return {name: value for name, value in row.items() if name not in self.tenancy}


class Tables:
    """Find tables, and cache their columns and keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, VersionedTable] = {}

    async def locate(self, name: str, key: Columns, *rows: Columns | None) -> RowAddress:
        """Return the address of the row with this key; raise `BadValue` for unknown columns or keys."""
        table = self._known.get(name)
        names = {column for row in (key, *rows) if row is not None for column in row}
        if table is None or not names <= {
            *table.columns,
            *table.tenancy,
        }:  # columns may have been added since
            self._known[name] = table = await self._read_table(name)
        unknown = sorted(map(str, names - {*table.columns, *table.tenancy}))
        if unknown:
            raise BadValue(
                f"table {name} has no column {', '.join(map(repr, unknown))}",
                hint=f"use its columns: {', '.join(table.columns)}",
            )
        if not table.is_key(key) or table.own(key).keys() != key.keys() or None in key.values():
            given = ", ".join(map(repr, key)) or "nothing"
            raise BadValue(
                f"key of table {name} must be {_describe_keys(table)}, got {given}",
                hint=f"pass a value for each of {_describe_keys(table)}",
            )
        whose = dict(zip(_TENANCY, self._store.mesh_id, strict=True))
        return RowAddress(table, plain(key), {column: whose[column] for column in table.tenancy})

    async def _read_table(self, name: str) -> VersionedTable:
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"table name must be letters, digits and underscores, got {name!r}",
                hint="pass the name alone, without quotes or schema",
            )
        if name.lower() in _internal_tables():
            raise BadValue(
                f"table {name} can't be written: it belongs to the mesh itself",
                hint="write to tables of your own, or to memories",
            )
        rows = await self._store.read(_SQL["columns"], (name,), fresh=True)
        if not rows:
            raise BadValue(f"table {name!r} not found", hint="create it first, with a column written_at TEXT")
        types = {row["column_name"]: row["type"].upper() for row in rows}
        odd = [column for column in types if not _NAME.fullmatch(column)]
        if odd:
            raise BadValue(
                f"column names must be letters, digits and underscores, got {', '.join(map(repr, odd))}",
                hint=f"rename these columns of {name}",
            )
        if not any(kind in types.get(WRITTEN_AT, "") for kind in _TEXT_TYPES):
            raise BadValue(
                f"table {name} has no column written_at TEXT: its rows have no versions",
                hint=f"run ALTER TABLE {name} ADD COLUMN written_at TEXT",
            )
        keys = {frozenset(row["column_name"] for row in rows if row["key_position"])}
        indexed = await self._store.read(_SQL["unique_columns"], (name,), fresh=True)
        for _, columns in groupby(indexed, lambda row: row["index_name"]):
            keys.add(frozenset(row["column_name"] for row in columns))
        keys = {key for key in keys if key and None not in key}
        return VersionedTable(
            name,
            tuple(column for column in types if column not in _TENANCY),
            tuple(column for column in _TENANCY if column in types),
            frozenset(keys),
        )

    def forget(self, name: str) -> None:
        """Read the table again when it is next used."""
        self._known.pop(name, None)


def _describe_keys(table: VersionedTable) -> str:
    keys = sorted(" and ".join(sorted(key.difference(table.tenancy))) for key in table.keys)
    return ", or ".join(keys) or "a primary key, which it lacks"


def _quote(name: str) -> str:
    """Return a checked name quoted for SQL. In double quotes, a missing column would be a text."""
    return f"[{name}]"


def plain(row: Columns) -> dict[str, Any]:
    """Return the row in its stored form, with booleans as integers."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}


@dataclass(frozen=True, slots=True)
class RowAddress:
    """The address of a row in a table, whether it exists or not."""

    table: VersionedTable
    key: Mapping[str, Value]
    whose: Mapping[str, Value]

    @property
    def row_key(self) -> str:
        """Return the key as canonical JSON."""
        return row_text(self.key)

    def select(self) -> Statement:
        """Return the query for the row."""
        columns = ", ".join(map(_quote, self.table.columns))
        return Statement(f"SELECT {columns} FROM {self._table} WHERE {self._here}", self._address)

    def put(self, values: Columns, over: Columns | None, written_at: str) -> Statement:
        """Return the statement that writes values if the row is still `over`, or (`None`) absent."""
        new = {**values, WRITTEN_AT: written_at}
        if over is not None:
            changes = ", ".join(f"{_quote(name)} = ?" for name in new)
            sql = f"UPDATE {self._table} SET {changes} WHERE {self._here} AND {WRITTEN_AT} IS ?"
            return Statement(sql, (*new.values(), *self._address, over[WRITTEN_AT]))
        new = {**self.whose, **self.key, **new}
        columns, marks = ", ".join(map(_quote, new)), ", ".join("?" * len(new))
        condition, params = self.unchanged_condition(None)
        sql = f"INSERT INTO {self._table} ({columns}) SELECT {marks} WHERE {condition}"
        return Statement(sql, (*new.values(), *params))

    def unchanged_condition(self, row: Columns | None) -> tuple[str, tuple[Value, ...]]:
        """Return the condition, with its values, that the row is still this version, or (`None`) absent."""
        found = f"SELECT 1 FROM {self._table} WHERE {self._here}"
        if row is None:
            return f"NOT EXISTS ({found})", self._address
        return f"EXISTS ({found} AND {WRITTEN_AT} IS ?)", (*self._address, row[WRITTEN_AT])

    @property
    def _table(self) -> str:
        return _quote(self.table.name)

    @property
    def _here(self) -> str:
        return " AND ".join(f"{_quote(name)} = ?" for name in (*self.whose, *self.key))

    @property
    def _address(self) -> tuple[Value, ...]:
        return (*self.whose.values(), *self.key.values())

    # --- the caller's rows -----------------------------------------------------------------------

    def base(self, row: Columns | None) -> dict[str, Any] | None:
        """Return the relevant columns of a row that was read."""
        if row is None:
            return None
        if WRITTEN_AT not in row or not isinstance(row[WRITTEN_AT], str | None):
            raise BadValue(
                "base must contain written_at, the version of the row",
                hint="pass the row that mesh.occ.read returned, or None if there was no row",
            )
        if any(name in row and row[name] != value for name, value in self.key.items()):
            raise BadValue(
                "base must be the row with this key", hint="pass the row that mesh.occ.read returned"
            )
        return plain(self.table.own(row))

    def bare(self, row: Columns) -> dict[str, Any]:
        """Return the columns of a row that can be written: all but its key and its version."""
        return {name: value for name, value in row.items() if name not in (*self.key, WRITTEN_AT)}

    def values(self, values: Columns, base: Columns | None) -> dict[str, Any]:
        """Return the values to write. Key and version may be given if they are unchanged."""
        fixed = dict(self.key) if base is None else {**self.key, WRITTEN_AT: base[WRITTEN_AT]}
        changed = plain(values)
        for name in (*self.key, *self.table.tenancy, WRITTEN_AT):
            if name in changed and (name not in fixed or changed.pop(name) != fixed[name]):
                raise BadValue(f"column {name!r} can't be written: the mesh sets it", hint="leave it out")
        return changed
