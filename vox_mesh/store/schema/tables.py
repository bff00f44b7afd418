"""Describe the tables of a database: their names, columns and keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from itertools import groupby
from typing import Final, NamedTuple

from vox_mesh.store.engine import Ask
from vox_mesh.store.engines import sqlite
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.schema.statements import ddl, named
from vox_mesh.store.script import Statement

SQL: Final = named("tables")
_ROWID_NAMES: Final = ("rowid", "_rowid_", "oid")


class TableColumns(NamedTuple):
    """A table. `columns` are all columns to copy, including row ids; `key` is a unique subset of them."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def quoted(self) -> str:
        """Return the table's name, quoted for SQL."""
        return quoted(self.name)

    def page(self, after: Sequence[Value] | None, count: int) -> Statement:
        """Return a query for the next rows in key order, after the given row."""
        if after is None:
            return Statement(f"{self.rows} ORDER BY {self.order} LIMIT ?", (count,))
        marks = ", ".join("?" * len(self.key))
        last = (after[self.columns.index(name)] for name in self.key)
        return Statement(
            f"{self.rows} WHERE ({self.order}) > ({marks}) ORDER BY {self.order} LIMIT ?", (*last, count)
        )

    @property
    def order(self) -> str:
        """Return the key's columns, quoted for SQL."""
        return ", ".join(map(quoted, self.key))

    @property
    def rows(self) -> str:
        """Return the beginning of a query for rows."""
        return f"SELECT {', '.join(map(quoted, self.columns))} FROM {self.quoted}"

    def insert(self, rows: int) -> str:
        """Return a statement that inserts `rows` rows."""
        row = f"({', '.join('?' * len(self.columns))})"
        columns = ", ".join(map(quoted, self.columns))
        return f"INSERT INTO {self.quoted} ({columns}) VALUES {', '.join([row] * rows)}"


def quoted(name: str) -> str:
    """Return a name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


async def tables_at(ask: Ask) -> list[TableColumns]:
    """Return the tables of the queried database."""
    return _tables(await ask(Statement(SQL["columns"])))


def tables_in(connection: sqlite3.Connection) -> list[TableColumns]:
    """Return the tables of a local database."""
    return _tables(sqlite.query(connection, Statement(SQL["columns"])))


@cache
def mesh_tables() -> tuple[TableColumns, ...]:
    """Return the tables of `sql/coordination.sql`."""
    with closing(sqlite.connect(":memory:")) as connection:
        for statement in ddl():
            connection.execute(statement)
        return tuple(tables_in(connection))


def _tables(rows: Rows) -> list[TableColumns]:
    by_table = groupby(rows, lambda row: str(row["table_name"]))
    return [_table(name, list(columns)) for name, columns in by_table]


def _table(name: str, rows: Sequence[Row]) -> TableColumns:
    columns = tuple(str(row["column_name"]) for row in rows)
    if rows[0]["without_rowid"]:
        keyed = sorted((row for row in rows if row["key_position"]), key=lambda row: int(row["key_position"]))
        return TableColumns(name, columns, tuple(str(row["column_name"]) for row in keyed))
    taken = {column.lower() for column in columns}
    rowid = next(each for each in _ROWID_NAMES if each not in taken)
    return TableColumns(name, (rowid, *columns), (rowid,))
