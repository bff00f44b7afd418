"""Pruned jobs as the op log has them: their rows are gone, and their proofs are still verified."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.records import ABORT, COMPLETE, EXPIRE, SCHEDULE, Job, JobState
from vox_mesh.model.jobs.replay import JobReplay
from vox_mesh.model.jobs.routes import RouteHistory
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import ChainWitness
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("retention")
_ENTRIES: Final = 20_000
"""How many entries of the log are looked through at a time."""

_ID_PREFIX: Final = re.compile(r"[0-9a-f]{6,64}")


class PrunedJob(NamedTuple):
    """A job whose row was pruned, as it was at its end, and when it was pruned."""

    job: Job
    pruned_ms: int


class PrunedJobs:
    """Finds jobs in the log. It looks through all of it."""

    def __init__(self, store: Store, oplog: OpLog) -> None:
        self._store = store
        self._oplog = oplog

    async def find(self, reference: str) -> PrunedJob | None:
        """Return the job with this id, id prefix or ULID; `None` if no authentic op has pruned one."""
        job_id = await self._job_id(reference)
        if job_id is None:
            return None
        pruned: PrunedJob | None = None
        ops: list[LogEntry] = []
        async for entry in self._naming(f'"job_id":"{job_id}"'):
            if entry.kind == SCHEDULE:
                ops, pruned = [], None
            ops.append(entry)
            if entry.kind == PRUNE and await self._oplog.is_authentic(entry):
                pruned = _pruned_by(job_id, ops, entry)
        return pruned

    async def _job_id(self, reference: str) -> str | None:
        """Return the id of the first job that a reference may name."""
        if is_ulid(reference.upper()):
            field, begins = "ulid", reference.upper()
        elif _ID_PREFIX.fullmatch(reference):
            field, begins = "job_id", reference
        else:
            return None
        async for entry in self._naming(f'"{field}":"{begins}'):
            for item in _items(entry):
                if str(item.get(field)).startswith(begins):
                    return str(item["job_id"])
        return None

    async def _naming(self, text: str) -> AsyncIterator[LogEntry]:
        """Yield the accepted ops that schedule, end or prune jobs, and have a text in their payload."""
        mesh, after = self._store.mesh_id, 0
        last: int = (await self._store.read(_SQL["last_entry"], mesh)).value or 0
        while after < last:
            until = after + _ENTRIES
            for row in await self._store.read(_SQL["ops_naming"], (*mesh, after, until, text)):
                yield LogEntry._make(row)
            after = until


def _pruned_by(job_id: str, ops: Iterable[LogEntry], prune: LogEntry) -> PrunedJob | None:
    """Return a job as these ops have it, the first of which schedules it."""
    replay = JobReplay(RouteHistory(ChainWitness(None, ())))
    row: dict[str, Any] | None = None
    for entry in ops:
        if entry.kind == SCHEDULE:
            replay.follow(entry)
            row = replay.jobs.get(job_id)
        elif row is not None and (item := _item_of(entry, job_id)) is not None:
            row.update(_end_of(entry, item))
    if row is None or row["ended_ms"] is None:
        return None
    return PrunedJob(Job(id=0, **row), orjson.loads(prune.payload)["at_ms"])


def _end_of(entry: LogEntry, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that an op changes which ends a job; the op that prunes it changes none."""
    ended = {"ended_ms": orjson.loads(entry.payload)["at_ms"], "last_op": entry.op_id}
    if entry.kind == COMPLETE:
        fields = ("claim_token", "state", "exit_code", "reason")
        outputs = orjson.dumps(item.get("output_artifacts", []), option=orjson.OPT_SORT_KEYS).decode()
        return {
            **{name: item.get(name) for name in fields},
            "claimer": entry.author,
            "output_artifacts": outputs,
            **ended,
        }
    if entry.kind == ABORT:
        return {"state": JobState.ABORTED.value, **ended}
    if entry.kind == EXPIRE and item.get("state") == JobState.FAILED:
        return {"state": JobState.FAILED.value, **ended}
    return {}


def _items(entry: LogEntry) -> list[Mapping[str, Any]]:
    try:
        return [item for item in orjson.loads(entry.payload)["jobs"] if isinstance(item, dict)]
    except (ValueError, KeyError, TypeError):
        return []


def _item_of(entry: LogEntry, job_id: str) -> Mapping[str, Any] | None:
    return next((item for item in _items(entry) if item.get("job_id") == job_id), None)
