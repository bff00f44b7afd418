"""Report on the replicas of all processes, by comparing their marks with the primary."""

from __future__ import annotations

import glob
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vox_mesh.store.replica.mark import SUFFIX, Record, is_owned, read_record, replica_path
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.replica.wire import Hello

STOPPED: Final = "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The status of a replica of any process.

    `reads`: what answers them there, the `replica` or the `primary`; empty if it is stopped.
    `snapshots`, `start_overs` and `fetched_bytes` are counted since the mark was created.
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
    is_current = state == ReplicaState.IN_TOUCH and lag_frames == 0
    is_fresh = age_ms is not None and age_ms <= max_stale_ms
    answers = is_fresh and state not in (ReplicaState.OFF, STOPPED)
    return ReplicaReport(
        slot=slot,
        driver=record.driver,
        state=state,
        reads="" if state == STOPPED else "replica" if answers else "primary",
        frame=record.next_frame - 1 if record.next_frame else None,
        lag_frames=lag_frames,
        lag_ms=0 if is_current else age_ms,
        bytes=path.stat().st_size if path.exists() else 0,
        snapshots=record.snapshots,
        start_overs=record.start_overs,
        fetched_bytes=record.fetched_bytes,
        error=record.error,
    )
