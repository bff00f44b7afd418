"""Ends of jobs as the ops that ended them state them, and the conditions that other jobs wait for."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.jobs.claim_history import claimed_jobs
from vox_mesh.model.jobs.manifest_fields import MAX_AFTER
from vox_mesh.model.jobs.records import ABORT, COMPLETE, EXPIRE, JobState
from vox_mesh.model.oplog.chain import LogEntry

_SUCCESS: Final = "success"
_END: Final = "end"
_OP: Final = "op"
_READ_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError)
_COMPLETED: Final = (JobState.SUCCEEDED, JobState.FAILED)


class JobEnd(NamedTuple):
    """How a job has ended: its state, the hashes of its outputs by name, and the op that says so."""

    state: JobState
    hashes: Mapping[str, str] = {}
    claim_token: object = None
    op_id: str | None = None


class Condition(NamedTuple):
    """What a job waits for: another job's success, its end, or an op."""

    predecessor: str
    awaited: str

    @property
    def is_op(self) -> bool:
        """Return whether it is an op."""
        return self.awaited == _OP

    @property
    def is_any_end(self) -> bool:
        """Return whether any end of the other job will do."""
        return self.awaited == _END

    def is_met_by(self, end: JobEnd | None) -> bool:
        """Return whether this end of the other job is what the job waits for."""
        return end is not None and (self.is_any_end or end.state is JobState.SUCCEEDED)


def conditions_of(item: Mapping[str, Any]) -> Sequence[Condition] | None:
    """Return the conditions in an item of the op that scheduled a job; `None` if they can't be read."""
    after = item.get("after") or ()
    try:
        if len(after) > MAX_AFTER:
            return None
        conditions = [Condition(*each) for each in after]
    except TypeError:
        return None
    are_texts = all(type(each.predecessor) is str for each in conditions)
    are_known = all(each.awaited in (_SUCCESS, _END, _OP) for each in conditions)
    return conditions if are_texts and are_known else None


def ends_stated_by(entry: LogEntry, outputs: Container[str]) -> dict[str, JobEnd]:
    """Return the jobs that an accepted entry has ended, with the hashes of these outputs.

    An entry that can't be read has ended none. A job that fails with its predecessor is not named.
    """
    if entry.accepted != 1 or entry.kind not in (COMPLETE, ABORT, EXPIRE):
        return {}
    if entry.kind == ABORT:
        return {job_id: JobEnd(JobState.ABORTED) for job_id in claimed_jobs(entry.payload, entry.result)}
    try:
        items = orjson.loads(entry.payload)["jobs"]
        if entry.kind == COMPLETE:
            return {item["job_id"]: _completion(item, outputs) for item in items}
        failed = {item["job_id"] for item in items if item.get("state") == JobState.FAILED}
    except _READ_ERRORS:
        return {}
    moved = claimed_jobs(entry.payload, entry.result)
    return {job_id: JobEnd(JobState.FAILED) for job_id in moved if job_id in failed}


def _completion(item: Mapping[str, Any], outputs: Container[str]) -> JobEnd:
    state = JobState(item["state"])
    if state not in _COMPLETED:
        raise ValueError(f"a job can't be completed as {state}")
    artifacts = item.get("output_artifacts") or ()
    hashes = {each["name"]: str(each["hash"]) for each in artifacts if each["name"] in outputs}
    return JobEnd(state, hashes, item.get("claim_token"))
