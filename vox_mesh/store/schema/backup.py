"""Back up the whole database, at one point in time, to an ordinary SQLite file, while writes continue."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from vox_mesh.errors import BackupRefused, TooLarge
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.files import publish
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.schema.schema import versions_at
from vox_mesh.store.schema.shape import SchemaObject, objects_at
from vox_mesh.store.schema.tables import SQL, TableColumns, tables_at
from vox_mesh.store.script import Statement, new_key

_MAX_PAGE_ROWS: Final = 8_192
_PAGE_BYTES: Final = 2**20  # a server puts up to 10 MB into an answer, and libsql-client takes 4 MiB
_VALUE_BYTES: Final = 40  # overhead of a value on the wire, in addition to its content


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    path: Path
    tables: int
    rows: int
    bytes: int


async def back_up(engine: Engine, path: Path) -> Backup:
    """Copy all tables, with their rows, indexes, triggers and views, to a new file.

    Everything is read in one read transaction. The file appears under its name when it is complete and on
    disk; before that, and after a failure, there is no such file.
    """
    draft = path.with_name(f".{path.name}.{new_key()}")
    disk = SerialThread("vox-mesh-backup")
    try:
        connection = await disk.do(lambda: _create(draft, path))
        try:
            tables, rows = await _write(engine, connection, disk)
            size = await disk.do(lambda: _publish(draft, path))
        finally:
            await disk.do(lambda: draft.unlink(missing_ok=True))
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BackupRefused(f"{path} can't be written: {reason}", hint="choose another folder") from None
    finally:
        await disk.stop()
    return Backup(path, tables, rows, size)


async def _write(engine: Engine, connection: sqlite3.Connection, disk: SerialThread) -> tuple[int, int]:
    try:
        async with engine.snapshot() as ask:
            return await _copy(ask, connection, disk)
    finally:
        await disk.do(connection.close)


def _create(draft: Path, path: Path) -> sqlite3.Connection:
    _refuse_if_taken(path)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite.connect(str(draft))
    # An incomplete file is discarded, so it needs no protection against crashes.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    return connection


async def _copy(ask: Ask, connection: sqlite3.Connection, disk: SerialThread) -> tuple[int, int]:
    version, _ = await versions_at(ask)
    if not version:
        raise BackupRefused("there is no mesh in this database yet", hint="run `vox-mesh db init` first")
    tables = await tables_at(ask)
    objects = await objects_at(ask)
    sequences = await sequences_at(ask)
    names = {table.name for table in tables}
    views = {each.name.lower() for each in objects if each.type == "view"}
    copied = {name.lower() for name in names} | views
    await disk.do(lambda: _define(connection, [each for each in objects if each.name in names]))
    rows = 0
    for table in tables:
        rows += await _copy_table(ask, table, connection, disk)
    # Indexes are built faster over all rows at once, and triggers must not fire for the copied rows.
    others = [each for each in objects if each.type != "table" and each.table.lower() in copied]
    await disk.do(lambda: _define(connection, others))
    await disk.do(lambda: _finish(connection, sequences))
    return len(tables), rows


async def sequences_at(ask: Ask) -> list[Row]:
    """Return the last ids that AUTOINCREMENT tables have assigned."""
    if not await ask(Statement(SQL["has_sequences"])):
        return []
    return list(await ask(Statement(SQL["sequences"])))


async def _copy_table(
    ask: Ask, table: TableColumns, connection: sqlite3.Connection, disk: SerialThread
) -> int:
    copied, count = 0, 1
    last: Row | None = None
    insert = table.insert(1)
    while True:
        try:
            page = await ask(table.page(last, count))
        except TooLarge:
            # Most likely the answer is too large. A real fault recurs with a single row.
            if count == 1:
                raise
            count //= 2
            continue
        await disk.do(partial(connection.executemany, insert, page))
        copied += len(page)
        if len(page) < count:
            return copied
        last = page[-1]
        count = max(1, min(_MAX_PAGE_ROWS, 2 * count, count * _PAGE_BYTES // sum(map(weight_of, page))))


def weight_of(row: Iterable[Value]) -> int:
    """Return the approximate size of a row in bytes."""
    return sum(_VALUE_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row)


def _define(connection: sqlite3.Connection, objects: list[SchemaObject]) -> None:
    for each in objects:
        connection.execute(each.sql)


def _finish(connection: sqlite3.Connection, sequences: list[Row]) -> None:
    for name, last in sequences:
        connection.execute(SQL["forget_sequence"], (name,))
        connection.execute(SQL["set_sequence"], (name, last))
    connection.execute("COMMIT")


def _refuse_if_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise BackupRefused(f"{path} exists already", hint="choose a name that is free")


def _publish(draft: Path, path: Path) -> int:
    _refuse_if_taken(path)  # another process may have created it meanwhile
    return publish(draft, path)
