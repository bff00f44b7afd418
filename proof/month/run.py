"""The run: days of work, with pruning, archiving and deletion as nodes do it, and the figures of each day."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Final

from proof.month import fleet
from proof.month.simulated_time import SimulatedTime
from tools.homes import FILE
from vox_mesh.cli.support.session import engine_session
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.mesh import Mesh
from vox_mesh.model.retention.subjects import DAY_MS
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.runtime.archive.deletion import delete_archived
from vox_mesh.settings import Settings
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.targets.target import FolderTarget
from vox_mesh.views.jobs import verify_proof

_STEPS: Final = 4
"""The parts of a day: after each, nodes do what is due."""

_KEPT_DAYS: Final = {"jobs": 2, "logs": 1, "notes": 1, "artifacts": 2, "messages": 1}
_ARCHIVED_AFTER_MS: Final = DAY_MS
_DELETED_AFTER_MS: Final = 2 * DAY_MS


@dataclass
class Day:
    """What there was at the end of a day."""

    number: int
    file_bytes: int
    rows: dict[str, int]
    entries: int
    verify_s: float  # of CPU
    verified_entries: int
    work_cpu_s: float


@dataclass
class Month:
    """What a run has found."""

    share: float
    empty_bytes: int = 0
    days: list[Day] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    verify_all_s: float = 0.0
    backup_s: float = 0.0
    backup_bytes: int = 0
    archive_bytes: int = 0
    jobs_done: int = 0
    entries_deleted: int = 0


async def run_month(folder: Path, days: int, share: float) -> Month:
    """Run this number of simulated days of a share of the fleet's work, in a database file in this folder."""
    archive = folder / "archive"
    settings = FILE.settings(folder, None, node_id="one", tick=3_600.0, archive_dir=archive)
    time = SimulatedTime(settings.db_path)
    month = Month(share)
    with time.installed():
        async with Mesh.open(settings, time.dependencies()) as node:
            await _Run(node, settings, time, month, archive).run(days)
    return month


class _Run:
    def __init__(
        self, node: MeshNode, settings: Settings, time: SimulatedTime, month: Month, archive: Path
    ) -> None:
        self._node = node
        self._settings = settings
        self._time = time
        self._month = month
        self._archive = archive
        archive.mkdir()
        parts = (node.store, node.identity, node.clock, node.trusted_keys)
        target = FolderTarget(archive)
        self._to_archive = LogArchive(*parts, lambda: node.oplog.verify(since=node.oplog.checkpoint), target)
        self._last_entry = 0
        self._sample_jobs: list[str] = []

    async def run(self, days: int) -> None:
        node, month = self._node, self._month
        await fleet.begin(node)
        await node.oplog.anchor()
        for subject, kept in _KEPT_DAYS.items():
            await node.retention.set(subject, age_ms=kept * DAY_MS)
        month.empty_bytes = _bytes(self._settings.db_path)
        a_step = max(1, round(fleet.AGENTS * fleet.A_DAY * month.share / _STEPS))
        for number in range(1, days + 1):
            began = process_time()
            for _ in range(_STEPS):
                self._sample_jobs.append(await fleet.do_work(node, month.jobs_done, a_step))
                month.jobs_done += a_step
                await self._pass(DAY_MS // _STEPS)
            await self._end_day(number, process_time() - began)
        await self._check()

    async def _pass(self, milliseconds: int) -> None:
        """Let time pass, and have the node do what is due."""
        self._time.advance(milliseconds)
        await self._node.run_once()
        await self._node.catch_up()
        await self._node.retention.prune_all()

    async def _end_day(self, number: int, work_cpu_s: float) -> None:
        node, month = self._node, self._month
        began = process_time()
        reports = await node.oplog.verify(since=node.oplog.checkpoint)
        verify_s = process_time() - began
        month.faults += [f"day {number}: {each.node_id} {each.problem}" for each in reports if each.problem]
        await self._seal()
        await self._to_archive.run_once(_ARCHIVED_AFTER_MS)
        deleted = await delete_archived(
            node, self._to_archive.target, _DELETED_AFTER_MS, self._time.dependencies().monotonic
        )
        await self._seal()
        month.entries_deleted += deleted
        rows = {size.table: size.rows for size in await node.retention.sizes.tables() if size.rows}
        last = (await node.store.read("SELECT max(id) FROM agent_oplog")).value
        new, self._last_entry = last - self._last_entry, last
        month.days.append(
            Day(number, _bytes(self._settings.db_path), rows, rows["agent_oplog"], verify_s, new, work_cpu_s)
        )

    async def _seal(self) -> None:
        """Seal what was written, as a node does once a minute.

        Of the entries between two seals, none is deleted while one of them governs something. Here, seals
        are hours apart: without this one, the work of hours would stay because of the ops of the archive.
        """
        if self._node.oplog.is_seal_due:
            await self._node.store.write(self._node.oplog.seal_script())

    async def _check(self) -> None:
        """Verify everything: the log with its archive, the jobs, and proofs of jobs from the whole month."""
        node, month = self._node, self._month
        began = process_time()
        reports = await node.oplog.verify(archive=FolderTarget(self._archive))
        month.verify_all_s = process_time() - began
        month.faults += [f"at the end: {each.node_id} {each.problem}" for each in reports if each.problem]
        month.faults += [f"rebuild: {each}" for each in await Rebuild(node.store, node.oplog).check()]
        for job_id in _sample(self._sample_jobs):
            verified = await verify_proof(node, job_id)
            month.faults += [f"proof of {job_id}: {each}" for each in verified.faults]
        began = process_time()
        copy = self._archive.with_name("backup.db")
        async with engine_session(self._settings) as engine:
            done = await back_up(engine, copy)
        month.backup_s, month.backup_bytes = process_time() - began, done.bytes
        month.archive_bytes = sum(each.stat().st_size for each in self._archive.iterdir())


def _sample(jobs: Sequence[str]) -> list[str]:
    """Return the first, some of the middle and the last."""
    return [jobs[0], jobs[len(jobs) // 2], jobs[-1]]


def _bytes(database: Path) -> int:
    """Return the size of the file, without its log, which has an upper bound of its own."""
    return database.stat().st_size


def run(folder: Path, days: int, share: float) -> Month:
    """Run the month in an event loop of its own."""
    return asyncio.run(run_month(folder, days, share))
