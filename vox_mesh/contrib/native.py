"""Keep a replica with the native `libsql` package, for primaries that do not push their log."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vox_mesh.errors import DriverMissing, NoAnswer, SyncRefused, Unauthorized, Unreachable
from vox_mesh.model.base.histogram import Counts
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.engines.reader import QUICK_S, SLOW_S, Reader, TooLong
from vox_mesh.store.replica.answering import CopyState
from vox_mesh.store.replica.follower import ReplicaFollower
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Restarted
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes

PACKAGE: Final = "libsql"
_FILES: Final = ("", "-wal", "-shm", "-info", "-client_wal_index", ".redo")
_OPEN_TIMEOUT_S: Final = 120
_EXIT_TIMEOUT_S: Final = 2.0
_NOT_OFFERED: Final = re.compile(r"status=404\b")
_NOT_ALLOWED: Final = re.compile(r"status=40[13]\b|invalid auth header")
# -P: files next to the program are not imported as modules.
COMMAND: Final = (sys.executable, "-P", str(Path(__file__).with_name("native_sync.py")))


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """The primary to copy, and the path of the copy."""

    path: Path
    endpoint: str
    token: str | None
    timeout: float


def require_package() -> None:
    """Raise `DriverMissing` unless the package is installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise DriverMissing(
            "the package libsql, which would keep a replica of this server, is not installed",
            hint="pip install 'vox-mesh[native]' (Linux x86_64 and macOS), or VOX_DB_REPLICA=off",
        )


class NativeReplica(ReplicaFollower):
    """Reads a file that another process syncs; SQLite's own log isolates the two."""

    driver = "native"

    def __init__(
        self,
        source: ReplicaSource,
        mark: Mark,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
        requests: Counts | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__(mark, watermark, changes, max_stale_s=max_stale_s, refused=refused, faults=faults)
        self._source = source
        self._requests = Counts() if requests is None else requests
        self._command = command
        self._reader = Reader(source.path, "mode=ro")

    @property
    def _copy_state(self) -> CopyState:
        path = self._source.path
        return CopyState("", 0, 0, path.stat().st_size if path.exists() else 0)

    async def _prepare(self) -> None:
        if not self._mark.record.as_of_ms:
            self._remove()  # left by another driver, from another primary, or incomplete

    async def _session(self) -> None:
        if self._reader.found_damage:
            self._remove()
            self._reader.found_damage = False
        async with SyncProcess(self._command, self._source) as process:
            while True:
                asked_at = self._monotonic()
                self._requests.add("sync")
                await process.sync()
                self._reader.close_connections()  # the schema may have changed
                self._advance_as_of(asked_at)
                self._progress.bump()
                await self._wait_for_refresh()
                if self._reader.found_damage:
                    raise Restarted("the file is damaged")

    def _read_now(self, statement: Statement) -> Rows | None:
        with suppress(TooLong):
            if not self._reader.is_slow(statement):
                return self._reader.query_inline(statement, QUICK_S)
        return None

    async def _read(self, statement: Statement) -> Rows | None:
        rows = self._read_now(statement)
        if rows is None and self._reader.is_worth_a_thread(statement):
            with suppress(TooLong):
                rows = await asyncio.to_thread(self._reader.query_in_thread, statement, SLOW_S)
        if self._reader.found_damage:
            self._refresh_requested.set()  # so that the task notices at once
        return rows

    def note_write(self, asked_at: float | None) -> None:
        """Do nothing: without frame numbers, an answer of the primary says nothing about the copy."""

    async def _discard(self) -> None:
        self._remove()

    def _remove(self) -> None:
        self._reader.close_connections()
        for suffix in _FILES:
            Path(f"{self._source.path}{suffix}").unlink(missing_ok=True)

    async def _release(self) -> None:
        self._reader.close_connections()


class SyncProcess:
    """The syncing process, running while the context is open."""

    def __init__(self, command: Sequence[str], source: ReplicaSource) -> None:
        self._command = command
        self._source = source
        self._process: asyncio.subprocess.Process | None = None
        self._is_open = False

    async def __aenter__(self) -> SyncProcess:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise Unreachable(f"the process that syncs can't be started: {error}") from None
        order = {
            "path": str(self._source.path.absolute()),
            "url": self._source.endpoint,
            "token": self._source.token or "",
            "open_s": _OPEN_TIMEOUT_S,
            "sync_s": max(1, round(self._source.timeout)),
        }
        try:
            await self._send_line(json.dumps(order))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def sync(self) -> None:
        """Fetch new commits, or raise the reason why it failed."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._is_open:
            await self._send_line("sync")
        answer = await self._process.stdout.readline()
        self._is_open = True
        if not answer:
            raise NoAnswer("the sync took too long, or its process ended")
        if error := json.loads(answer)["error"]:
            raise _convert_error(error)

    async def _send_line(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise NoAnswer("the process that syncs has ended") from None

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        except BaseException as error:
            self._process.kill()
            await self._process.wait()
            if not isinstance(error, TimeoutError):
                raise


def _convert_error(error: str) -> Exception:
    """Return the exception for an error of the package, which differ only by their text."""
    text = " ".join(error.split())
    if _NOT_OFFERED.search(text):
        return SyncRefused(f"the server does not know this package's protocol: {text}")
    if _NOT_ALLOWED.search(text):
        return Unauthorized(f"the server refused the token: {text}", hint="check that VOX_DB_TOKEN is valid")
    return Unreachable(f"the sync failed: {text}")
