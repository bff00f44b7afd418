"""Deleted jobs: pruned jobs of which only some entries remain in the log. These say nothing any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from vox_mesh.model.jobs.records import INFERENCE, JOB_OPS
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.retention.ops import PRUNE

OF_JOBS: Final = frozenset((*JOB_OPS, INFERENCE, PRUNE))
"""The kinds of ops that are about jobs."""


def jobs_of(entry: LogEntry) -> list[str] | None:
    """Return the jobs that an op names; `None` if it can't be read."""
    try:
        return [each for each in _named(orjson.loads(entry.payload)) if isinstance(each, str)]
    except (ValueError, TypeError):
        return None


def _named(payload: Any) -> Iterator[Any]:
    if not isinstance(payload, dict):
        return
    if "job_id" in payload:
        yield payload["job_id"]
    jobs = payload.get("jobs")
    for item in jobs if isinstance(jobs, list) else ():
        if isinstance(item, dict):
            yield item.get("job_id")


def is_remainder(entry: LogEntry, deleted: Mapping[str, int]) -> bool:
    """Return whether an op is about such jobs only: `deleted`, each with the id up to which it is one."""
    if entry.kind not in OF_JOBS:
        return False
    jobs = jobs_of(entry)
    return bool(jobs) and all(deleted.get(each, 0) >= entry.id for each in jobs or ())
