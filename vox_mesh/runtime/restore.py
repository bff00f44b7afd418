"""Restore: copy a backup into an empty database of any backend.

The rows are written in parts, each in its own transaction, since no server accepts all of them in one. The
table `unfinished_restore` has the number of restored rows and the file's fingerprint; it is created in the
first transaction and dropped in the last, which also raises the counters. In between, `mesh_schema` has a
version that is too new for any code, so every process that opens the database is rejected. Therefore an
interrupted restore is never mistaken for a complete one, and restoring the same file again resumes it: a part
that was applied is refused when it is sent again, also when two restores of one file run concurrently.

A backup of an earlier schema version is copied and migrated first, and restored from the copy. Triggers are
absent until the end, because the rows already contain their effects.

The mesh's objects are created from `sql/coordination.sql`, never from the backup. Of its other objects, only
passive tables and their indexes are created (`vox_mesh.store.schema.passive`); others are refused or skipped.

Idempotency keys (`script_results`, `script_answers`) are restored too. A spool outlives the database: it may
hold a script that was applied before the backup was taken, but whose answer was lost. Without its key, the
replay would apply it a second time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from vox_mesh.errors import BackupRefused, BadStatement, DatabaseBusy, MeshError
from vox_mesh.store.batch import Batch, StepError
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.schema.copying import weight_of
from vox_mesh.store.schema.restorable import restorable, str_of
from vox_mesh.store.schema.schema import UNFINISHED, VERSION, ensure_schema, migrate
from vox_mesh.store.schema.shape import definitions_of, expected, objects_in
from vox_mesh.store.schema.statements import named
from vox_mesh.store.schema.tables import SQL as TABLES
from vox_mesh.store.schema.tables import TableColumns, mesh_tables, quoted, tables_at, tables_in
from vox_mesh.store.schema.unexpected import is_known_trigger, trigger_names
from vox_mesh.store.script import Statement, new_key
from vox_mesh.store.write.retry import RetryingCaller

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SQL: Final = named("restore")
_SCHEMA: Final = named("schema")
_NOT_RESTORED: Final = frozenset(
    {"mesh_schema", "database_clock", "clock_witnesses"}
)  # specific to a database
_MAX_LISTED: Final = 5
_MAX_PART_BYTES: Final = 2**19
_MAX_PART_VALUES: Final = 8_000  # SQLite accepts up to 32,766 values in a statement


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore, with the number of counters raised by 2^32 and the skipped objects."""

    tables: int
    rows: int
    fences_raised: int
    incarnations_raised: int
    skipped: tuple[str, ...] = ()


class BackupFile:
    """A verified backup, whose rows are always read in the same order."""

    def __init__(self, path: Path, fingerprint: str | None = None) -> None:
        self.path = path
        if not path.is_file():
            raise BackupRefused(f"{path} is not a file", hint="name a file that `vox-mesh db backup` wrote")
        try:
            self.fingerprint = _fingerprint(path) if fingerprint is None else fingerprint
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise BackupRefused(f"{path} can't be read: {error}", hint="check the file") from None
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self.version = self._check(path)
            self.content = restorable(
                tables_in(self._connection), objects_in(self._ask(TABLES["definitions"]))
            )
            self.tables = [table for table in self.content.tables if table.name not in _NOT_RESTORED]
            self.counts = {table.name: self._count(table) for table in self.tables}
            self.sequences = self._ask(TABLES["sequences"]) if self._ask(TABLES["has_sequences"]) else []
        except BaseException:
            self._connection.close()
            raise
        self._position: tuple[TableColumns, int] | None = None
        self._cursor: sqlite3.Cursor | None = None

    def _check(self, path: Path) -> int:
        hint = "name a file that `vox-mesh db backup` wrote"
        try:
            if not self._connection.execute(_SCHEMA["is_there"]).fetchone():
                raise BackupRefused(f"{path} is a SQLite database, but no mesh", hint=hint)
            integrity = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            version = self._connection.execute(_SCHEMA["versions"]).fetchone()[0]
        except sqlite3.Error as error:
            raise BackupRefused(f"{path} can't be read as a database: {error}", hint=hint) from None
        if integrity != "ok":
            raise BackupRefused(f"{path} is damaged: {integrity}", hint="take another backup")
        if version is None or version > VERSION:
            raise BackupRefused(
                f"{path} has schema version {version}; this code knows up to {VERSION}",
                hint="upgrade vox-mesh on this machine",
            )
        return int(version)

    def copy_to(self, path: Path) -> None:
        """Copy the whole file."""
        try:
            with closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
        except sqlite3.Error as error:
            fault = f"{path} can't be written: {error}"
            raise BackupRefused(fault, hint="set TMPDIR to a folder with more room") from None

    @property
    def total(self) -> int:
        """Return the number of rows to restore."""
        return sum(self.counts.values())

    def part(self, done: int) -> tuple[TableColumns, list[tuple[Value, ...]]]:
        """Return the next rows, all of one table, after the first `done` rows."""
        position = self._locate(done)
        table, offset = position
        if position != self._position or self._cursor is None:
            query = f"{table.rows} ORDER BY {table.order} LIMIT -1 OFFSET ?"
            self._cursor = self._connection.execute(query, (offset,))
        rows: list[tuple[Value, ...]] = []
        weight = 0
        while weight < _MAX_PART_BYTES and (len(rows) + 1) * len(table.columns) <= _MAX_PART_VALUES:
            row = self._cursor.fetchone()
            if row is None:
                break
            rows.append(row)
            weight += weight_of(row)
        self._position = table, offset + len(rows)
        return table, rows

    def _locate(self, done: int) -> tuple[TableColumns, int]:
        for table in self.tables:
            if done < self.counts[table.name]:
                return table, done
            done -= self.counts[table.name]
        raise IndexError("there are no more rows")

    def _count(self, table: TableColumns) -> int:
        count: int = self._connection.execute(f"SELECT count(*) FROM {table.quoted}").fetchone()[0]
        return count

    def _ask(self, sql: str) -> list[Row]:
        return list(sqlite.query(self._connection, Statement(sql)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


async def restore(
    engine: Engine, backup: BackupFile, *, timeout: float, skip_unknown: bool = False
) -> Restored:
    """Copy a backup into an empty database and raise every fence counter and incarnation by 2^32.

    `timeout` bounds each request, not the whole. Raises `BackupRefused` if the backup has objects that a
    restore does not create, unless `skip_unknown`.
    """
    disk = SerialThread("vox-mesh-restore")
    try:
        async with _migrated(backup, disk) as (current, skipped):
            if skipped and not skip_unknown:
                raise _unknown_objects(backup.path, skipped)
            await _Restore(engine, current, disk, timeout).run()
            result = Restored(
                tables=len(current.tables),
                rows=current.total,
                fences_raised=current.counts.get("lock_generations", 0),
                incarnations_raised=current.counts.get("node_incarnations", 0),
                skipped=skipped,
            )
    finally:
        await disk.stop()
    _log.warning(
        "restored %s: raised %d fence counters and %d incarnations by 2^32",
        backup.path,
        result.fences_raised,
        result.incarnations_raised,
    )
    return result


@asynccontextmanager
async def _migrated(
    backup: BackupFile, disk: SerialThread
) -> AsyncIterator[tuple[BackupFile, tuple[str, ...]]]:
    """Yield the backup and the objects to skip; of an earlier schema version, a migrated temporary copy."""
    if backup.version == VERSION:
        yield backup, backup.content.skipped
        return
    with tempfile.TemporaryDirectory(prefix="vox-mesh-restore-") as folder:
        path = Path(folder) / "backup.db"
        dropped = await disk.do(lambda: _copy_without_triggers(backup, path))
        copy = await FileEngine.open(path)
        try:
            await migrate(copy)
        finally:
            await copy.close()
        with await disk.do(lambda: BackupFile(path, backup.fingerprint)) as migrated:
            yield migrated, (*dropped, *migrated.content.skipped)


def _copy_without_triggers(backup: BackupFile, path: Path) -> tuple[str, ...]:
    """Copy the file and drop unknown triggers, which would fire in the migration. Return their names."""
    backup.copy_to(path)
    unknown = [each for each in backup.content.triggers if not is_known_trigger(each)]
    with closing(sqlite.connect(str(path))) as copy:
        for each in unknown:
            copy.execute(f"DROP TRIGGER {quoted(each.name)}")
    return tuple(str_of(each) for each in unknown if each.name not in trigger_names())


def _unknown_objects(path: Path, skipped: tuple[str, ...]) -> BackupRefused:
    more = f" and {len(skipped) - _MAX_LISTED} more" if len(skipped) > _MAX_LISTED else ""
    return BackupRefused(
        f"{path} has objects that are not the mesh's: {', '.join(skipped[:_MAX_LISTED])}{more}",
        hint="find out who created them, then pass --skip-unknown to restore the rest",
    )


class _Restore:
    def __init__(self, engine: Engine, backup: BackupFile, disk: SerialThread, timeout: float) -> None:
        self._engine = engine
        self._backup = backup
        self._disk = disk
        self._timeout = timeout
        self._caller = RetryingCaller(None)

    async def run(self) -> None:
        """Start the restore, or resume an interrupted one of this file, and complete it."""
        done = await self._rows_done()
        if done is None:
            done = await self._begin_or_join()
        while done is not None and done < self._backup.total:
            done = await self._add_part(done)
        if done is not None:
            await self._end()

    async def _begin_or_join(self) -> int:
        try:
            return await self._begin()
        except BackupRefused:
            done = await self._rows_done()  # another restore of this file may have begun meanwhile
            if done is None:
                raise
            return done

    async def _begin(self) -> int:
        await self._retry(lambda: ensure_schema(self._engine))
        existing = await self._retry(lambda: tables_at(self._engine.query))
        names = {table.name for table in existing}
        expected_names = {table.name for table in (*mesh_tables(), *self._backup.tables)} - _NOT_RESTORED
        must_be_empty = [table for table in existing if table.name in expected_names]
        await self._refuse_if_in_use(must_be_empty)
        batch = Batch()
        for table in must_be_empty:
            batch.add(f"INSERT INTO refusals SELECT 'refused' WHERE EXISTS (SELECT 1 FROM {table.quoted})")
        for each in self._backup.content.objects:
            if each.type == "table" and each.name not in names:
                batch.add(each.sql)
        for kind, name in expected():
            if kind == "trigger":
                batch.add(f"DROP TRIGGER IF EXISTS {quoted(name)}")
        batch.add(_SQL["create_progress"])
        batch.add(_SQL["begin"], (self._backup.fingerprint,))
        batch.add(_SQL["block_opening"], (UNFINISHED,))
        error = await self._apply(batch)
        done = await self._rows_done()
        if done is None:
            raise _stop_error(error)
        return done

    async def _refuse_if_in_use(self, tables: list[TableColumns]) -> None:
        filled: list[str] = []
        for table in tables:
            count = (await self._ask(f"SELECT count(*) FROM {table.quoted}")).value
            if count:
                filled.append(f"{count} in {table.name}")
        if filled:
            raise BackupRefused(
                f"the database is in use: it has rows ({', '.join(filled)})",
                hint="restore into an empty database",
            )

    async def _add_part(self, done: int) -> int | None:
        table, rows = await self._disk.do(lambda: self._backup.part(done))
        batch = Batch()
        batch.add(_SQL["refuse_unless_at"], (self._backup.fingerprint, done))
        batch.add(table.insert(len(rows)), [value for row in rows for value in row])
        batch.add(_SQL["advance"], (len(rows),))
        error = await self._apply(batch)
        if error is None:
            return done + len(rows)
        # It was applied and only its answer lost, or another restore of this file was faster.
        now_done = await self._rows_done()
        if now_done == done:
            raise _stop_error(error)
        return now_done

    async def _end(self) -> None:
        backup = self._backup
        existing = {row["name"] for row in await self._ask(TABLES["definitions"])}
        batch = Batch()
        batch.add(_SQL["refuse_unless_at"], (backup.fingerprint, backup.total))
        for table in backup.tables:
            # A process that was connected before the restore may have written meanwhile.
            batch.add(
                f"INSERT INTO refusals SELECT 'refused' WHERE (SELECT count(*) FROM {table.quoted}) <> ?",
                (backup.counts[table.name],),
            )
        created = {**definitions_of(backup.content.objects), **expected()}
        for (kind, name), sql in created.items():
            if kind != "table" and name not in existing:
                batch.add(sql)
        for table_name, last in backup.sequences:
            batch.add(TABLES["forget_sequence"], (table_name,))
            batch.add(TABLES["set_sequence"], (table_name, last))
        for step in ("raise_fences", "raise_tokens", "forget_shares", "raise_incarnations"):
            batch.add(_SQL[step])
        batch.add(_SQL["begin_epochs"], (new_key(),))
        batch.add(_SQL["unblock_opening"], (UNFINISHED,))
        batch.add(_SQL["end"])
        error = await self._apply(batch)
        if error is not None and await self._rows_done() is not None:
            raise _stop_error(error)

    async def _rows_done(self) -> int | None:
        """Return the number of restored rows of this file, or `None` if no restore is in progress."""
        if not await self._ask(_SQL["is_unfinished"]):
            return None
        try:
            row = (await self._ask(_SQL["progress"]))[0]
        except BadStatement:
            if await self._ask(_SQL["is_unfinished"]):
                raise
            return None  # another restore of this file has just completed
        if row["fingerprint"] != self._backup.fingerprint:
            raise BackupRefused(
                "the database holds a part of another backup: its restore was not finished",
                hint="restore that file again, or use an empty database",
            )
        done: int = row["rows_done"]
        return done

    async def _apply(self, batch: Batch) -> StepError | None:
        """Run a batch with retries. Return the error that kept it from taking effect, or `None`."""
        batch.seal()

        async def attempt() -> StepError | None:
            result = await self._engine.run(batch)
            error = result.error
            if error is not None and error.is_busy:
                raise DatabaseBusy(f"the database is busy: {error.message}")
            return None if result.committed else error or StepError("", "the transaction was cut short")

        return await self._retry(attempt)

    async def _ask(self, sql: str) -> Rows:
        return await self._retry(lambda: self._engine.query(Statement(sql)))

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        return await self._caller.call(attempt, lambda: loop.time() < deadline)


def _stop_error(error: StepError | None) -> MeshError:
    reason = "something else wrote into the database"
    if error is not None and not error.is_constraint:
        reason = error.message
    return BackupRefused(
        f"the restore stopped: {reason}",
        hint="stop whatever else uses the database and restore into an empty one",
    )


def _fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
