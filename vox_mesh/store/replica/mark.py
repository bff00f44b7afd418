"""The mark beside a replica: it says that the file is one, and how far it has come.

A database without a mark is nobody's replica and never overwritten; one with it is nobody's primary.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from vox_mesh.errors import ReplicaOff
from vox_mesh.store.files import make_private

SUFFIX: Final = ".mark"
_SIZE: Final = 2_048
_READS: Final = 3
_TRIES: Final = 5
_LOOK_S: Final = 0.005
_MAX_ERROR: Final = 300


@dataclass(frozen=True, slots=True)
class Record:
    """How the replica stands.

    `digest` tells the right pages of this position from any others, `checksum` the right log up to it.
    `session` is the run of the primary whose log is known to lead to this position.
    `as_of_ms` is the moment, by this machine's clock, up to which it is known to hold every commit.
    The last three count since the mark was made: snapshots applied, copies dropped, bytes of the log fetched.
    """

    driver: str
    primary: str
    log_id: str = ""
    next_frame: int = 0
    pages: int = 0
    digest: int = 0
    checksum: int = 0
    session: str = ""
    as_of_ms: int = 0
    state: str = ""
    error: str = ""
    snapshots: int = 0
    start_overs: int = 0
    fetched_bytes: int = 0


def replica_path(database: Path, slot: str) -> Path:
    """Where the replica of a slot lies."""
    return Path(f"{database}.replica-{slot}")


def mark_of(path: Path) -> Path:
    """Where the mark of a replica lies."""
    return Path(f"{path}{SUFFIX}")


def read_record(path: Path) -> Record | None:
    """What the mark of the replica at `path` says; `None` if there is none, or nothing readable in it."""
    try:
        descriptor = os.open(mark_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(_READS):  # its owner may be writing it just now
            if (record := _decoded(os.pread(descriptor, _SIZE, 0))) is not None:
                return record
    finally:
        os.close(descriptor)
    return None


def is_owned(path: Path) -> bool:
    """Whether a process keeps the replica at `path`."""
    try:
        descriptor = os.open(mark_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock the mark, if nobody else has it locked; whether that was so."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Mark:
    """The mark of a replica that this process owns: an OS lock on it, gone with the process."""

    def __init__(self, descriptor: int, record: Record) -> None:
        self._descriptor = descriptor
        self._updating = threading.Lock()  # pages are applied in one thread, hellos heard in another
        self.record = record

    @classmethod
    def take(cls, path: Path, driver: str, primary: str) -> Self:
        """Make the replica at `path` ours; raise `ReplicaOff` if it is no replica or another process's."""
        marker = mark_of(path)
        if path.exists() and not marker.exists():
            raise ReplicaOff(
                f"{path} is not marked as a replica, so it is left alone",
                hint="move it away, or set VOX_DB_PATH to another file",
            )
        make_private(path.parent)
        descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            tries = _TRIES
            while not _lock(descriptor, fcntl.LOCK_EX):
                tries -= 1
                if not tries:
                    raise ReplicaOff(
                        f"{path} is in use by another process",
                        hint="give each VOX_MESH_HOME a VOX_DB_PATH of its own",
                    )
                time.sleep(_LOOK_S)  # some only look whether it is owned
            found = _decoded(os.pread(descriptor, _SIZE, 0))
            if found is None or (found.driver, found.primary) != (driver, primary):
                found = Record(driver, primary)
            mark = cls(descriptor, found)
            mark.update()
        except BaseException:
            os.close(descriptor)
            raise
        return mark

    def update(self, **changes: Any) -> None:
        """Change and write the record, in one piece."""
        if "error" in changes:
            # Whatever was in it, it must fit, and be fit to be written.
            changes["error"] = changes["error"].encode("unicode_escape").decode()[:_MAX_ERROR]
        with self._updating:
            self.record = replace(self.record, **changes)
            os.pwrite(self._descriptor, _encoded(self.record), 0)

    @property
    def free_bytes(self) -> int:
        """How much room there is on the disk."""
        disk = os.fstatvfs(self._descriptor)
        return disk.f_bavail * disk.f_frsize

    def release(self) -> None:
        """Let another process own the replica."""
        os.close(self._descriptor)


def _encoded(record: Record) -> bytes:
    text = orjson.dumps(record)
    return f"{zlib.crc32(text):08x} ".encode() + text.ljust(_SIZE - 10) + b"\n"


def _decoded(data: bytes) -> Record | None:
    check, _, text = data.rstrip().partition(b" ")
    if f"{zlib.crc32(text):08x}".encode() != check:
        return None
    try:
        return Record(**orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError):
        return None
