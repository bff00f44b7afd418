"""Scheduled jobs: what the op that scheduled a job fixes about its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from vox_mesh.model.base.canonical import text_id
from vox_mesh.model.jobs.records import SCHEDULE, Job
from vox_mesh.model.oplog.chain import LogEntry

Item = Mapping[str, Any]
"""The entry of one job in an op."""


class ScheduledJob(NamedTuple):
    """The values of a job that its author chose. The id is the hash of the manifest."""

    job_id: str
    ulid: str
    kind: str
    priority: int
    max_attempts: int
    backoff_ms: int
    lease_ms: int | None
    seed: str

    @classmethod
    def of_item(cls, item: Item) -> ScheduledJob:
        """Return the job that an item of an op schedules."""
        values = (item["ulid"], item["kind"], item["priority"], item["max_attempts"], item["backoff_ms"])
        return cls(item["job_id"], *values, item.get("lease_ms"), item["seed"])

    @classmethod
    def of_row(cls, job: Job) -> ScheduledJob | None:
        """Return the job that a row represents; `None` if its manifest is another job's."""
        if type(job.manifest) is not str or text_id(job.manifest) != job.job_id:
            return None
        values = (job.ulid, job.kind, job.priority, job.max_attempts, job.backoff_ms)
        return cls(job.job_id, *values, job.lease_ms, job.seed)


def scheduled_by(entry: LogEntry) -> Iterator[tuple[ScheduledJob, int]]:
    """Yield the jobs that an accepted entry schedules, and the earliest time of each in ms.

    Items that can't be read are skipped: no row can follow from them.
    """
    if entry.kind != SCHEDULE or entry.accepted != 1:
        return
    try:
        payload = orjson.loads(entry.payload)
        at_ms, items = int(payload["at_ms"]), list(payload["jobs"])
    except (ValueError, TypeError, KeyError):
        return
    for item in items:
        try:
            job = ScheduledJob.of_item(item)
            hash(job)
            yield job, max(at_ms, item.get("run_at_ms") or 0)
        except (TypeError, KeyError, AttributeError):
            continue
