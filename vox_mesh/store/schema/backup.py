"""Back up the whole database, at one point in time, to an ordinary SQLite file, while writes continue."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vox_mesh.errors import BackupRefused
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.files import publish
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.copying import copy_database
from vox_mesh.store.schema.database_file import DatabaseFile
from vox_mesh.store.schema.shape import SchemaObject
from vox_mesh.store.schema.tables import TableColumns
from vox_mesh.store.script import new_key


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
        file = await disk.do(lambda: _create(draft, path))
        try:
            try:
                copied = await copy_database(engine, _FileCopy(file, disk))
            finally:
                await disk.do(file.close)
            size = await disk.do(lambda: _publish(draft, path))
        finally:
            await disk.do(lambda: draft.unlink(missing_ok=True))
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BackupRefused(f"{path} can't be written: {reason}", hint="choose another folder") from None
    finally:
        await disk.stop()
    return Backup(path, copied.tables, copied.rows, size)


class _FileCopy:
    """Writes what is copied to a file, in a thread."""

    def __init__(self, file: DatabaseFile, disk: SerialThread) -> None:
        self._file = file
        self._disk = disk

    async def define(self, objects: Sequence[SchemaObject]) -> None:
        await self._disk.do(lambda: self._file.define(each.sql for each in objects))

    async def add(self, table: TableColumns, rows: Sequence[Row]) -> None:
        await self._disk.do(lambda: self._file.add(table, rows))

    async def finish(self, sequences: Sequence[Row]) -> None:
        await self._disk.do(lambda: self._file.finish(sequences))


def _create(draft: Path, path: Path) -> DatabaseFile:
    _refuse_if_taken(path)
    return DatabaseFile(draft)


def _refuse_if_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise BackupRefused(f"{path} exists already", hint="choose a name that is free")


def _publish(draft: Path, path: Path) -> int:
    _refuse_if_taken(path)  # another process may have created it meanwhile
    return publish(draft, path)
