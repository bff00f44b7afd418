"""Archived jobs: pruned jobs whose ops were deleted from the database, and are read from the archive.

The archive is read from its first segment to its last, and then the rest of the log. Each file must have the
size and the digest that the log records, and what the database still has of it must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vox_mesh.errors import ArchiveFailed
from vox_mesh.jobs.proof.pruned import ENDS_OF_JOBS, JobReference, PrunedJob, PruningReplay
from vox_mesh.model.jobs.records import CLAIM, SCHEDULE, Job, most_specific
from vox_mesh.model.jobs.routes import is_claim_of
from vox_mesh.model.jobs.scheduled_job import has_own_manifest, jobs_scheduled_by
from vox_mesh.model.oplog.chain import LogEntry, node_of
from vox_mesh.model.retention.deleted_jobs import OF_JOBS
from vox_mesh.oplog.archive.archived_log import ArchivedLog
from vox_mesh.oplog.archive.chain_parts import ChainParts
from vox_mesh.oplog.archive.segment_ops import SegmentOps
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.oplog.pages import Pace
from vox_mesh.oplog.pending_ops import no_such_op
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget


class ArchivedJob(NamedTuple):
    """A pruned job, the part of the log that is about it, and how many segments were read."""

    pruned: PrunedJob
    log: ArchivedJobLog
    segments: int


class ArchivedJobs:
    """Finds jobs in the archive."""

    def __init__(self, store: Store, oplog: OpLog, trusted_keys: TrustedKeys, target: FileTarget) -> None:
        self._store = store
        self._oplog = oplog
        self._trusted_keys = trusted_keys
        self._target = target

    async def find(self, reference: str) -> ArchivedJob | None:
        """Return the job with this id, id prefix or ULID; `None` if no authentic op has pruned one.

        Raises:
            ArchiveFailed: The archive does not have what the log records of it.
        """
        wanted = JobReference(reference)
        segments = await SegmentOps(self._store, self._trusted_keys).read()
        if not segments.recorded:
            return None
        archived = ArchivedLog(self._store, self._target, segments.recorded, await self._oplog.deleted())
        log = ArchivedJobLog(
            self._oplog,
            self._trusted_keys,
            ChainParts(self._store.writer_id.scope_id, await self._trusted_keys.closed_chains()),
        )
        pace = Pace()
        async for page in archived.entries():
            _refuse_faults(archived.faults)
            for entry in page:
                log.add(entry, wanted)
                await pace.keep(entry.payload)
        _refuse_faults(archived.faults)
        pruned = None if wanted.job_id is None else await log.pruned(wanted.job_id)
        return None if pruned is None else ArchivedJob(pruned, log, len(segments.recorded))


def _refuse_faults(faults: Sequence[str]) -> None:
    if faults:
        raise ArchiveFailed(
            faults[0], hint="restore the file from a copy, and run `vox-mesh oplog verify --archive`"
        )


class ArchivedJobLog:
    """The log about one job, from the archive and the database."""

    def __init__(self, oplog: OpLog, trusted_keys: TrustedKeys, parts: ChainParts) -> None:
        self._oplog = oplog
        self._parts = parts
        self._ops: dict[str, LogEntry] = {}
        self.trusted_keys = trusted_keys.of_chain

    def add(self, entry: LogEntry, wanted: JobReference) -> None:
        """Take in the next entry of the log."""
        is_wanted = type(entry.payload) is str and entry.kind in OF_JOBS and wanted.find_in(entry)
        self._parts.add(entry, is_wanted=is_wanted)
        if is_wanted:
            self._ops[entry.op_id] = entry

    async def pruned(self, job_id: str) -> PrunedJob | None:
        """Return the job as it was when it was pruned last."""
        replay = PruningReplay(job_id, self.is_authentic)
        for entry in self._ops.values():
            if entry.kind in ENDS_OF_JOBS and entry.accepted == 1:
                await replay.follow(entry)
        return replay.pruned

    async def find(self, op_id: str) -> LogEntry:
        """Return the entry of an op about the job; raise `NotKnown` if there is none."""
        if op_id not in self._ops:
            raise no_such_op(op_id)
        return self._ops[op_id]

    async def is_scheduled(self, job: Job) -> bool:
        """Return whether an op that its author signed schedules a job with these values."""
        for entry in self._ops.values():
            if entry.kind == SCHEDULE and entry.node_id == job.scheduled_by:
                scheduled = jobs_scheduled_by([entry]).get((job.job_id, job.seed))
                if scheduled is not None and scheduled.is_row(job) and await self.is_authentic(entry):
                    return has_own_manifest(job)
        return False

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""
        return self._parts.is_authentic(entry, await self.trusted_keys(entry.node_id))

    async def has_changed_verdict(self, entry: LogEntry) -> bool:
        """Return whether the verdict of an entry, or one near it, was changed since its author sealed it."""
        return self._parts.has_changed_verdict(entry, await self.trusted_keys(entry.node_id))

    async def barred_from(self, kind: str, completion: LogEntry, job_id: str, claim_token: Any) -> str | None:
        """Return the node that a kind was routed to when the author of a completion claimed the job."""
        routes = await self._oplog.routes.history()
        if most_specific(routes.patterns, kind) is None:
            return None
        for entry in self._ops.values():
            is_before = entry.node_id == completion.node_id and entry.seq < completion.seq
            if entry.kind == CLAIM and is_before and is_claim_of(entry, job_id, claim_token):
                return routes.barred_from(kind, node_of(entry.node_id), entry.id)
        return None
