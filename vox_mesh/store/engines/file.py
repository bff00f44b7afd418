"""Implement the file backend: one SQLite file, shared by the processes of one machine."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from vox_mesh.errors import DatabaseBusy, DatabaseFault, DatabaseNotOpened, WrongBackend
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts, Space
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.file_space import compact, shrink, space_of
from vox_mesh.store.engines.reader import QUICK_S, LoopTurn, Reader, TooLong
from vox_mesh.store.engines.thread import HeadStart, SerialThread, settle
from vox_mesh.store.engines.wal import WalStatus, WalWatch
from vox_mesh.store.engines.writing import WritingConnection
from vox_mesh.store.files import make_private
from vox_mesh.store.replica.paths import mark_of
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_REPLICA_NAME: Final = re.compile(r".+\.replica-[^/]+")
_BUSY_TIMEOUT_S: Final = 5.0
_OPEN_TIMEOUT_S: Final = 10.0
_MIN_HEAD_START_SCRIPTS: Final = 8  # enough callers to keep the loop busy while their scripts are written
_MAX_HEAD_START_S: Final = 0.001
_PRAGMAS: Final = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "journal_size_limit = 16777216",
)
_OF_EMPTY_FILE: Final = (
    "PRAGMA auto_vacuum = INCREMENTAL"  # elsewhere it would write to the file at each opening
)
_DATA_VERSION: Final = "PRAGMA data_version"
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"

_first_open: Final = threading.Lock()
"""Held while a file is inspected before its first opening, and while its turn file is created."""


def refuse_unless_ours(path: Path) -> None:
    """Raise `WrongBackend` for a replica, and for a file that is not a database.

    Do not call it in a process that has the file open: closing the file here would drop the locks that SQLite
    holds on it for the whole process, and another process that closes it could then delete its log.
    """
    _refuse_replica(path)
    if path.exists() and path.stat().st_size > 0:
        with path.open("rb") as file:
            if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                raise _not_a_database(path)


def _refuse_replica(path: Path) -> None:
    if mark_of(path).exists() or _REPLICA_NAME.fullmatch(path.name):
        raise WrongBackend(
            f"{path} is a replica of another database",
            hint="set VOX_DB_PATH to another file, or VOX_DB_URL to the replica's primary",
        )
    if path.is_dir():
        raise WrongBackend(f"{path} is a folder", hint="set VOX_DB_PATH to a file")


def _not_a_database(path: Path) -> WrongBackend:
    return WrongBackend(f"{path} is not a SQLite database", hint="set VOX_DB_PATH to another file")


class Turn:
    """The queue of writing processes: an OS lock taken before each transaction, with a bell at its end.

    SQLite's own waiting polls and is unfair; the kernel's does neither. The lock is released when its process
    ends, however it ends. Processes that listen for commits learn from the bell when to look.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # on a full disk, others see the writes to the log instead
            if not os.pread(self._descriptor, 1, 0):
                os.pwrite(self._descriptor, b"\n", 0)  # what is read to ring the bell

    def take_if_free(self) -> bool:
        """Take the turn if it is free. Return whether it was taken; entering it afterwards works as usual."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> None:
        """Wait for the turn."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        """Release the turn, and ring the bell."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # what was committed stays so
            os.pread(self._descriptor, 1, 0)

    def close(self) -> None:
        """Leave the queue."""
        os.close(self._descriptor)


_Opened = tuple[Turn, sqlite3.Connection, sqlite3.Connection]


class FileEngine:
    """A thread for writes and one for reads, each with its own connection.

    What is fast runs without a thread, and without waiting for a lock: queries on a connection of their own,
    writes on the one of the writing thread, while that has nothing to do. One more connection only detects
    the commits of other connections, from memory that all processes share.
    """

    max_scripts = 256

    def __init__(
        self,
        path: Path,
        writer: SerialThread,
        turn: Turn,
        writing: sqlite3.Connection,
        reading: sqlite3.Connection,
    ) -> None:
        self._path = path
        self._turn = turn
        self._writing = WritingConnection(writing)
        self._reading = reading
        self._writer = writer
        self._reader = SerialThread("vox-mesh-reader")
        self._inline_reader = Reader(path, "mode=ro", is_original=True)
        self._loop_turn = LoopTurn()
        self._watching: sqlite3.Connection | None = None
        self.wal = WalWatch(Path(f"{path.resolve()}-wal"))
        """Monitors the write-ahead log."""

    @classmethod
    async def open(cls, path: Path) -> FileEngine:
        """Open the database file, or create it, readable by its owner only."""
        _refuse_replica(path)
        with _first_open:
            if not turn_path(path).exists():  # no process has it open
                refuse_unless_ours(path)
        writer = SerialThread("vox-mesh-writer")
        opened: list[_Opened] = []
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await writer.do(lambda: opened.append(_open_file(path)))
        except BaseException as error:
            writer.do(lambda: _close(opened))  # the thread may still open it later
            await writer.stop(timeout=0.0)
            raise _open_error(path, error) from None
        return cls(path, writer, *opened[0])

    def run(self, batch: Batch) -> Awaitable[BatchResult]:
        """Run the batch's transaction when it is this process's turn."""
        if batch.scripts < _MIN_HEAD_START_SCRIPTS:
            if (done := self._run_in_loop(batch)) is not None:
                return done
            return self._writer.do(partial(self._write, batch))
        start = HeadStart()
        writing = self._writer.do(partial(self._write_with_head_start, batch, start))
        start.wait(_MAX_HEAD_START_S)
        return writing

    def _run_in_loop(self, batch: Batch) -> asyncio.Future[BatchResult] | None:
        """Run the batch now, if it will be fast; `None` if the writing thread must run it.

        The result comes in the loop's next iteration: so others go on too, and their writes meet in a batch.
        """
        if self._writer.is_busy or not self._writing.pace.is_fast(batch) or not self._turn.take_if_free():
            return None
        with self._turn:
            result = self._writing.walk_in_loop(batch)
        if result is None:
            return None
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BatchResult] = loop.create_future()
        loop.call_soon(settle, done, result)
        return done

    def _write(self, batch: Batch, before_last: Callable[[], None] | None = None) -> BatchResult:
        with self._turn:
            if self._writer.is_given_up:  # cancelled while it waited for the turn: it must not be applied
                raise asyncio.CancelledError
            result = self._writing.walk(batch, before_last)
        self.wal.check_if_due(self._writing.for_thread())
        return result

    def _write_with_head_start(self, batch: Batch, start: HeadStart) -> BatchResult:
        """Run the batch, and release the loop at the last statement, which usually takes longest."""
        try:
            if not self._turn.take_if_free():
                start.release()
            return self._write(batch, before_last=start.release)
        finally:
            start.release()

    async def query(self, statement: Statement) -> Rows:
        """Run a query: in the loop's thread if it is fast, else in the reading thread."""
        rows = self.answer_now(statement)
        return await self._reader.do(lambda: self._query(statement)) if rows is None else rows

    def answer_now(self, statement: Statement) -> Rows | None:
        """Run a query in the loop's thread; `None` if the reading thread must answer."""
        reader = self._inline_reader
        if self._loop_turn.has_time and not reader.is_slow(statement):
            with suppress(TooLong):
                return reader.query_inline(statement, QUICK_S)
        return None

    def _query(self, statement: Statement) -> Rows:
        began = time.perf_counter()
        rows = sqlite.query(self._reading, statement)
        self._inline_reader.note_duration(statement, time.perf_counter() - began)
        return rows

    async def data_version(self) -> int:
        """Return a number that changes with every commit of another connection, in any process."""
        watching = self._watching
        if watching is None:
            watching = await self._reader.do(self._watch)
        try:
            version: int = watching.execute(_DATA_VERSION).fetchone()[0]
        except sqlite3.Error as error:
            raise sqlite.query_error(sqlite.step_error(error)) from None
        return version

    def _watch(self) -> sqlite3.Connection:
        """Open the watching connection in the reading thread: once, and not after `close`."""
        if self._watching is None:
            self._watching = _open_watching(self._path)
        return self._watching

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same state, in their own read transaction."""
        connection = await self._reader.do(lambda: _open_reading(self._path))

        async def ask(statement: Statement) -> Rows:
            return await self._reader.do(lambda: sqlite.query(connection, statement, is_exact=True))

        try:
            await ask(Statement("BEGIN"))
            yield ask
        finally:
            await self._reader.do(connection.close)

    async def wal_status(self) -> WalStatus:
        """Checkpoint as far as readers allow, and return the status of the write-ahead log."""
        return await self._reader.do(lambda: self.wal.check(self._reading))

    async def space(self) -> Space:
        """Return how much of the file is free."""
        return await self._reader.do(lambda: space_of(self._reading))

    async def shrink(self, pages: int) -> None:
        """Give up to this number of free pages back to the file system, when it is this process's turn."""
        await self._writer.do(lambda: self._in_turn(lambda: shrink(self._writing.for_thread(), pages)))

    async def compact(self) -> None:
        """Rewrite the whole file without free pages. Other processes can't write meanwhile."""
        await self._writer.do(lambda: self._in_turn(lambda: compact(self._writing.for_thread())))

    def _in_turn(self, change: Callable[[], None]) -> None:
        try:
            with self._turn:
                change()
        except sqlite3.Error as error:
            raise sqlite.query_error(sqlite.step_error(error)) from error

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        return EngineFacts("sqlite", str(self._path), f"SQLite {sqlite3.sqlite_version}")

    async def close(self) -> None:
        """Stop the threads and close the file."""
        self._inline_reader.close_connections()
        # A connection that a thread still uses stays open until the process ends.
        if await self._reader.stop():
            if self._watching is not None:
                self._watching.close()
            self._reading.close()
        if await self._writer.stop():
            self._writing.close()
            self._turn.close()


def _open_error(path: Path, error: BaseException) -> BaseException:
    if isinstance(error, TimeoutError):
        return DatabaseBusy(
            f"another process has kept {path} from being opened for {_OPEN_TIMEOUT_S:g} s",
            hint="is a process that writes to it stopped or hanging?",
        )
    if _code(error) == sqlite3.SQLITE_NOTADB:
        return _not_a_database(path)
    if isinstance(error, OSError | sqlite3.Error):
        if getattr(error, "errno", None) == errno.ENOSPC or (_code(error) or 0) & 0xFF in _DISK_FAULTS:
            return DatabaseFault(f"{path} can't be opened: {error}", hint="is the disk full? free some space")
        return DatabaseNotOpened(
            f"{path} can't be opened: {error}", hint="check VOX_DB_PATH and the folder's permissions"
        )
    return error


_DISK_FAULTS: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _code(error: BaseException) -> int | None:
    """Return SQLite's code of an error, if it has one."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code


def turn_path(path: Path) -> Path:
    """Return the lock file of the queue of writing processes."""
    return Path(f"{path}.turn")


def _open_file(path: Path) -> _Opened:
    make_private(path.parent)
    with ExitStack() as cleanup:
        with _first_open:
            turn = cleanup.enter_context(closing(Turn(turn_path(path))))
        # Switching a new file to WAL needs exclusive access: processes that start together take turns.
        with turn:
            # An existing file must not be opened here: closing it would drop SQLite's locks.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            writing = cleanup.enter_context(closing(_connect(path)))
            if not path.stat().st_size:
                writing.execute(_OF_EMPTY_FILE)
            for pragma in _PRAGMAS:
                writing.execute(f"PRAGMA {pragma}")
        reading = _open_reading(path)
        cleanup.pop_all()
    return turn, writing, reading


def _open_reading(path: Path) -> sqlite3.Connection:
    reading = _connect(path)
    reading.execute("PRAGMA query_only = 1")
    return reading


def _open_watching(path: Path) -> sqlite3.Connection:
    try:
        watching = _connect(path, busy_timeout_s=0.0)
        watching.execute(_DATA_VERSION)  # so that later calls need not read from the disk
    except sqlite3.Error as error:
        raise sqlite.query_error(sqlite.step_error(error)) from error
    return watching


def _connect(path: Path, busy_timeout_s: float = _BUSY_TIMEOUT_S) -> sqlite3.Connection:
    return sqlite.connect(str(path), busy_timeout_s=busy_timeout_s)


def _close(opened: Sequence[_Opened]) -> None:
    for each in opened:
        for part in each:
            part.close()
