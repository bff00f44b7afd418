"""Find rows with text that is not UTF-8: SQLite stores it, but clients can't decode it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import TooLarge
from vox_mesh.store.engine import Ask
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.schema.tables import TableColumns, mesh_tables, quoted, tables_at
from vox_mesh.store.script import Statement

_PAGE: Final = 100
_MAX_PAGES: Final = 100
_NOT_ASCII: Final = "'*[^' || char(1) || '-' || char(127) || ']*'"


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row, the columns that can't be read, and the statement that deletes it."""

    table: str
    columns: tuple[str, ...]
    delete: str

    def __str__(self) -> str:
        return f"{self.table}.{', '.join(self.columns)}"


async def unreadable_rows(ask: Ask, limit: int) -> list[UnreadableRow]:
    """Return up to `limit` rows of the mesh's tables with text that is not UTF-8.

    It reads all text that is not ASCII, of each table at most the first 10,000 such rows.
    """
    ours = {table.name for table in mesh_tables()}
    found: list[UnreadableRow] = []
    for table in await tables_at(ask):
        if table.name in ours:
            found += await _rows_of(ask, table, limit - len(found))
        if len(found) >= limit:
            break
    return found


async def _rows_of(ask: Ask, table: TableColumns, limit: int) -> list[UnreadableRow]:
    found: list[UnreadableRow] = []
    skipped = 0
    for _ in range(_MAX_PAGES):
        rows = await _page(ask, table, skipped)
        skipped += len(rows)
        found += [each for row in rows if (each := _judge(table, row)) is not None]
        if not rows or len(found) >= limit:
            break
    return found[:limit]


async def _page(ask: Ask, table: TableColumns, skipped: int) -> Rows:
    size = _PAGE
    while True:
        try:
            return await ask(_suspects(table, size, skipped))
        except TooLarge:
            if size == 1:
                raise
            size //= 4


def _suspects(table: TableColumns, count: int, skipped: int) -> Statement:
    """Return a query for rows with text that is not ASCII, with all values as bytes or numbers."""
    names = [quoted(name) for name in table.columns]
    values = ", ".join(
        f"typeof({name}), {_if_suspect(name, name in map(quoted, table.key))}" for name in names
    )
    where = " OR ".join(map(_is_suspect, names))
    sql = f"SELECT {values} FROM {table.quoted} WHERE {where} ORDER BY {table.order} LIMIT ? OFFSET ?"
    return Statement(sql, (count, skipped))


def _is_suspect(name: str) -> str:
    """Return a condition for text that is not ASCII, or behind whose first part SQLite does not look."""
    return f"(typeof({name}) = 'text' AND ({name} GLOB {_NOT_ASCII} OR instr(CAST({name} AS BLOB), x'00')))"


def _if_suspect(name: str, is_key: bool) -> str:
    value = f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})"
    return value if is_key else f"iif({_is_suspect(name)}, CAST({name} AS BLOB), NULL)"


def _judge(table: TableColumns, row: Row) -> UnreadableRow | None:
    values = dict(zip(table.columns, _pairs(row), strict=True))
    bad = [name for name, (kind, value) in values.items() if kind == "text" and not _is_utf_8(value)]
    if not bad:
        return None
    where = " AND ".join(f"{name} = {_literal(*values[name])}" for name in table.key)
    return UnreadableRow(table.name, tuple(bad), f"DELETE FROM {table.name} WHERE {where}")


def _pairs(row: Sequence[Value]) -> Iterator[tuple[str, Value]]:
    for kind, value in zip(row[::2], row[1::2], strict=True):
        yield str(kind), value


def _is_utf_8(value: Value) -> bool:
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _literal(kind: str, value: Value) -> str:
    if not isinstance(value, bytes):
        return str(value)
    if kind == "text" and value.isalnum():
        return f"'{value.decode()}'"
    return f"CAST(x'{value.hex()}' AS TEXT)" if kind == "text" else f"x'{value.hex()}'"
