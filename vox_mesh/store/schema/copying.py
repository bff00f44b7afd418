"""Copy the whole database, at one point in time, while writes continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from vox_mesh.errors import BackupRefused, TooLarge
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.schema.schema import versions_at
from vox_mesh.store.schema.shape import SchemaObject, objects_at
from vox_mesh.store.schema.tables import SQL, TableColumns, tables_at
from vox_mesh.store.script import Statement

_MAX_PAGE_ROWS: Final = 8_192
_PAGE_BYTES: Final = 2**20  # a server puts up to 10 MB into an answer, and libsql-client takes 4 MiB
_VALUE_BYTES: Final = 40  # overhead of a value on the wire, in addition to its content


class CopyDestination(Protocol):
    """Receives the content of a database, in an order that depends on nothing else."""

    async def define(self, objects: Sequence[SchemaObject]) -> None:
        """Receive definitions: those of the tables first, those of all else after the rows."""

    async def add(self, table: TableColumns, rows: Sequence[Row]) -> None:
        """Receive rows of a table."""

    async def finish(self, sequences: Sequence[Row]) -> None:
        """Receive the last ids that AUTOINCREMENT tables have assigned. This is the end."""


class Copied(NamedTuple):
    """What was copied."""

    tables: int
    rows: int


async def copy_database(engine: Engine, destination: CopyDestination) -> Copied:
    """Copy all tables, with their rows, indexes, triggers and views, in one read transaction."""
    async with engine.snapshot() as ask:
        return await _copy(ask, destination)


async def _copy(ask: Ask, destination: CopyDestination) -> Copied:
    version, _ = await versions_at(ask)
    if not version:
        raise BackupRefused("there is no mesh in this database yet", hint="run `vox-mesh db init` first")
    tables = await tables_at(ask)
    objects = await objects_at(ask)
    sequences = await sequences_at(ask)
    names = {table.name for table in tables}
    views = {each.name.lower() for each in objects if each.type == "view"}
    copied = {name.lower() for name in names} | views
    await destination.define([each for each in objects if each.name in names])
    rows = 0
    for table in tables:
        rows += await _copy_table(ask, table, destination)
    # Indexes are built faster over all rows at once, and triggers must not fire for the copied rows.
    await destination.define(
        [each for each in objects if each.type != "table" and each.table.lower() in copied]
    )
    await destination.finish(sequences)
    return Copied(len(tables), rows)


async def sequences_at(ask: Ask) -> list[Row]:
    """Return the last ids that AUTOINCREMENT tables have assigned."""
    if not await ask(Statement(SQL["has_sequences"])):
        return []
    return list(await ask(Statement(SQL["sequences"])))


async def _copy_table(ask: Ask, table: TableColumns, destination: CopyDestination) -> int:
    copied, count = 0, 1
    last: Row | None = None
    while True:
        try:
            page = await ask(table.page(last, count))
        except TooLarge:
            # Most likely the answer is too large. A real fault recurs with a single row.
            if count == 1:
                raise
            count //= 2
            continue
        await destination.add(table, page)
        copied += len(page)
        if len(page) < count:
            return copied
        last = page[-1]
        count = max(1, min(_MAX_PAGE_ROWS, 2 * count, count * _PAGE_BYTES // sum(map(weight_of, page))))


def weight_of(row: Iterable[Value]) -> int:
    """Return the approximate size of a row in bytes."""
    return sum(_VALUE_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row)
