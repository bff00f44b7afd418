"""Mark a file as a replica, record its position, and report on the replicas of all processes.

A database without a mark is not a replica and is never overwritten; one with a mark is never a primary.
"""

from __future__ import annotations

import fcntl
import glob
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from vox_mesh.errors import ReplicaOff
from vox_mesh.store.files import make_private, open_private
from vox_mesh.store.replica.paths import SUFFIX, mark_of, replica_path, slot_of
from vox_mesh.store.replica.record_file import SIZE, decode, encode, read_file
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.replica.shared.published import read_published
from vox_mesh.store.replica.wire import PAGE, Hello

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


def read_record(path: Path) -> Record | None:
    """Return the record in the mark of the replica at `path`; `None` if it is missing or unreadable."""
    return read_file(mark_of(path), Record)


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
        for _ in range(_LOCK_ATTEMPTS):
            if (mark := cls.take_if_free(path, driver, primary)) is not None:
                return mark
            time.sleep(_LOCK_RETRY_S)  # another process may only be checking for an owner
        raise ReplicaOff(
            f"{path} is in use by another process", hint="give each VOX_MESH_HOME a VOX_DB_PATH of its own"
        )

    @classmethod
    def take_if_free(cls, path: Path, driver: str, primary: str) -> Self | None:
        """Take ownership of the replica at `path`; return `None` if another process owns it.

        Raises:
            ReplicaOff: The file is not a replica.
        """
        marker = mark_of(path)
        if path.exists() and not marker.exists():
            raise ReplicaOff(
                f"{path} is not marked as a replica, so it is left alone",
                hint="move it away, or set VOX_DB_PATH to another file",
            )
        make_private(path.parent)
        descriptor = open_private(marker)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
            found = decode(os.pread(descriptor, SIZE, 0), Record)
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
            os.pwrite(self._descriptor, encode(self.record), 0)

    @property
    def free_bytes(self) -> int:
        """Return the free space on the disk."""
        disk = os.fstatvfs(self._descriptor)
        return disk.f_bavail * disk.f_frsize

    def release(self) -> None:
        """Release the ownership of the replica."""
        os.close(self._descriptor)


# --- report --------------------------------------------------------------------------------------


STOPPED: Final = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The status of a replica of any process.

    `reads`: what answers them there, the `replica` or the `primary`; empty if it is stopped.
    `snapshots`, `start_overs` and `fetched_bytes` are counted since the mark was created. `follower_pid` is
    the process that follows the primary for all that share the replica.
    """

    slot: str
    driver: str
    state: str
    reads: str
    frame: int | None
    lag_frames: int | None
    lag_ms: int | None
    bytes: int
    snapshots: int
    start_overs: int
    fetched_bytes: int
    follower_pid: int | None
    error: str


def replicas_next_to(database: Path) -> Iterator[tuple[str, Path]]:
    """Yield the slot and the path of every replica next to the database's path."""
    stem = replica_path(database, "").name
    for mark in sorted(database.parent.glob(f"{glob.escape(stem)}*{SUFFIX}")):
        path = mark.with_name(mark.name.removesuffix(SUFFIX))
        yield path.name.removeprefix(stem), path


def reports(database: Path, primary: str, hello: Hello | None, max_stale_ms: int) -> list[ReplicaReport]:
    """Return the status of all replicas of the primary, compared with its hello if there was one."""
    found = ((slot, path, read_record(path)) for slot, path in replicas_next_to(database))
    return [
        _report(slot, path, record, hello, max_stale_ms)
        for slot, path, record in found
        if record is not None and record.primary == primary
    ]


def _report(slot: str, path: Path, record: Record, hello: Hello | None, max_stale_ms: int) -> ReplicaReport:
    state = record.state if is_owned(path) else STOPPED
    age_ms = max(0, time.time_ns() // 1_000_000 - record.as_of_ms) if record.as_of_ms else None
    lag_frames = None
    if hello is not None and hello.log_id == record.log_id:
        lag_frames = max(0, hello.next_frame - record.next_frame)
    published = None if state == STOPPED else read_published(path)
    is_current = state == ReplicaState.IN_TOUCH and lag_frames == 0
    is_fresh = age_ms is not None and age_ms <= max_stale_ms
    answers = is_fresh and state not in (ReplicaState.OFF, STOPPED)
    return ReplicaReport(
        slot=slot_of(slot),
        driver=record.driver,
        state=state,
        reads="" if state == STOPPED else "replica" if answers else "primary",
        frame=record.next_frame - 1 if record.next_frame else None,
        lag_frames=lag_frames,
        lag_ms=0 if is_current else age_ms,
        bytes=record.pages * PAGE or (path.stat().st_size if path.exists() else 0),
        snapshots=record.snapshots,
        start_overs=record.start_overs,
        fetched_bytes=record.fetched_bytes,
        follower_pid=None if published is None else published.pid,
        error=record.error,
    )
