"""Pruned jobs as the op log has them: their rows are gone, and their proofs are still verified."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
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

ENDS_OF_JOBS: Final = frozenset((SCHEDULE, COMPLETE, EXPIRE, ABORT, PRUNE))
"""The kinds of ops that schedule, end or prune jobs."""

_SQL: Final = named("retention")
_ENTRIES: Final = 20_000
"""How many entries of the log are looked through at a time."""

_ID_PREFIX: Final = re.compile(r"[0-9a-f]{6,64}")


class PrunedJob(NamedTuple):
    """A job whose row was pruned, as it was at its end, and when it was pruned."""

    job: Job
    pruned_ms: int


class PruningReplay:
    """Follows the ops about one job, in the order of their commits, to the last one that pruned it."""

    def __init__(self, job_id: str, is_authentic: Callable[[LogEntry], Awaitable[bool]]) -> None:
        self._job_id = job_id
        self._is_authentic = is_authentic
        self._ops: list[LogEntry] = []
        self.pruned: PrunedJob | None = None

    async def follow(self, entry: LogEntry) -> None:
        """Take in the next accepted op that schedules, ends or prunes jobs."""
        if _item_of(entry, self._job_id) is None:
            return  # it is about another job, whose manifest has this one's id
        if entry.kind == SCHEDULE:
            self._ops, self.pruned = [], None
        self._ops.append(entry)
        if entry.kind == PRUNE and await self._is_authentic(entry):
            self.pruned = _pruned_by(self._job_id, self._ops, entry)


class JobReference:
    """A job id, id prefix or ULID, and the job that it names as soon as an op with it was seen."""

    def __init__(self, reference: str) -> None:
        """Raises `BadValue` if no job can have such a name."""
        if is_ulid(reference.upper()):
            self._field, self._begins = "ulid", reference.upper()
        elif _ID_PREFIX.fullmatch(reference):
            self._field, self._begins = "job_id", reference
        else:
            raise BadValue(f"{reference} is no job id, id prefix or ULID")
        self.job_id: str | None = None

    @property
    def text(self) -> str:
        """Return what the payloads of ops that name the job have in them."""
        if self.job_id is not None:
            return f'"job_id":"{self.job_id}"'
        return f'"{self._field}":"{self._begins}'

    def find_in(self, entry: LogEntry) -> bool:
        """Return whether an op names the job; learn its id from the first one that does."""
        if self.text not in entry.payload:
            return False
        if self.job_id is None:
            named = (each for each in _items(entry) if str(each.get(self._field)).startswith(self._begins))
            self.job_id = next((str(each.get("job_id")) for each in named), None)
        return self.job_id is not None


class PrunedJobs:
    """Finds jobs in the log. It looks through all of it."""

    def __init__(self, store: Store, oplog: OpLog) -> None:
        self._store = store
        self._oplog = oplog

    async def find(self, reference: str) -> PrunedJob | None:
        """Return the job with this id, id prefix or ULID; `None` if no authentic op has pruned one."""
        wanted = JobReference(reference)
        async for entry in self._naming(wanted.text):
            if wanted.find_in(entry):
                break
        if wanted.job_id is None:
            return None
        replay = PruningReplay(wanted.job_id, self._oplog.is_authentic)
        async for entry in self._naming(wanted.text):
            await replay.follow(entry)
        return replay.pruned

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
