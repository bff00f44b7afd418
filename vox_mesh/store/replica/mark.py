"""Mark a file as a replica, and record its position.

A database without a mark is not a replica and is never overwritten; one with a mark is never a primary.
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
_READ_ATTEMPTS: Final = 3
_LOCK_ATTEMPTS: Final = 5
_LOCK_RETRY_S: Final = 0.005
_MAX_ERROR: Final = 300


@dataclass(frozen=True, slots=True)
class Record:
    """The replica's state.

    `digest` identifies the pages at this position, `checksum` the log up to it.
    `session` is the run of the primary whose log is known to lead to this position.
    `as_of_ms` is the time, by this machine's clock, up to which it is known to hold every commit.
    The last three count since the mark was created: snapshots applied, copies dropped, bytes of log fetched.
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
    """Return the path of a slot's replica."""
    return Path(f"{database}.replica-{slot}")


def mark_of(path: Path) -> Path:
    """Return the path of a replica's mark."""
    return Path(f"{path}{SUFFIX}")


def read_record(path: Path) -> Record | None:
    """Return the record in the mark of the replica at `path`; `None` if it is missing or unreadable."""
    try:
        descriptor = os.open(mark_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(_READ_ATTEMPTS):  # its owner may be writing it
            if (record := _decode(os.pread(descriptor, _SIZE, 0))) is not None:
                return record
    finally:
        os.close(descriptor)
    return None


def is_owned(path: Path) -> bool:
    """Return whether a process owns the replica at `path`."""
    try:
        descriptor = os.open(mark_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    """Lock the mark if it is not locked by another process. Return whether it is locked now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Mark:
    """The mark of a replica that this process owns through an OS lock, which ends with the process."""

    def __init__(self, descriptor: int, record: Record) -> None:
        self._descriptor = descriptor
        self._update_lock = threading.Lock()  # pages and hellos are recorded by different threads
        self.record = record

    @classmethod
    def take(cls, path: Path, driver: str, primary: str) -> Self:
        """Take ownership of the replica at `path`.

        Raises:
            ReplicaOff: The file is not a replica, or another process owns it.
        """
        marker = mark_of(path)
        if path.exists() and not marker.exists():
            raise ReplicaOff(
                f"{path} is not marked as a replica, so it is left alone",
                hint="move it away, or set VOX_DB_PATH to another file",
            )
        make_private(path.parent)
        descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            tries = _LOCK_ATTEMPTS
            while not _try_lock(descriptor, fcntl.LOCK_EX):
                tries -= 1
                if not tries:
                    raise ReplicaOff(
                        f"{path} is in use by another process",
                        hint="give each VOX_MESH_HOME a VOX_DB_PATH of its own",
                    )
                time.sleep(_LOCK_RETRY_S)  # another process may only be checking for an owner
            found = _decode(os.pread(descriptor, _SIZE, 0))
            if found is None or (found.driver, found.primary) != (driver, primary):
                found = Record(driver, primary)
            mark = cls(descriptor, found)
            mark.update()
        except BaseException:
            os.close(descriptor)
            raise
        return mark

    def update(self, **changes: Any) -> None:
        """Change the record, and write it in one piece."""
        if "error" in changes:
            # Any error text must fit and be encodable.
            changes["error"] = changes["error"].encode("unicode_escape").decode()[:_MAX_ERROR]
        with self._update_lock:
            self.record = replace(self.record, **changes)
            os.pwrite(self._descriptor, _encode(self.record), 0)

    @property
    def free_bytes(self) -> int:
        """Return the free space on the disk."""
        disk = os.fstatvfs(self._descriptor)
        return disk.f_bavail * disk.f_frsize

    def release(self) -> None:
        """Release the ownership of the replica."""
        os.close(self._descriptor)


def _encode(record: Record) -> bytes:
    text = orjson.dumps(record)
    return f"{zlib.crc32(text):08x} ".encode() + text.ljust(_SIZE - 10) + b"\n"


def _decode(data: bytes) -> Record | None:
    check, _, text = data.rstrip().partition(b" ")
    if f"{zlib.crc32(text):08x}".encode() != check:
        return None
    try:
        return Record(**orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError):
        return None
