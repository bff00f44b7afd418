"""Scheduled jobs: what the op that scheduled a job fixes about its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import text_id
from vox_mesh.model.jobs.records import DEFAULT_INTERRUPTIONS, SCHEDULE, Job
from vox_mesh.model.oplog.chain import LogEntry

Item = Mapping[str, Any]
"""The entry of one job in an op."""


_OF_KEY: Final = ("job_id", "seed")


class ScheduledJob(NamedTuple):
    """The item by which an op scheduled a job, and the earliest time in ms at which it may be claimed."""

    ulid: str
    item: Item
    """What an op says of a job that others may have in common; jobs of one op share it."""
    earliest_ms: int
    entry_id: int
    """The entry of the op in the log, or an earlier one."""
    op_id: str

    @classmethod
    def of(
        cls, item: Item, earliest_ms: int, entry_id: int, op_id: str, shared: dict[bytes, Item]
    ) -> ScheduledJob:
        """Return the job of an item. What jobs have in common is kept once, in `shared`: many are remembered.

        Without the manifest: it is large, and the id is its hash.
        """
        rest = {**item}
        del rest["manifest"]
        for name in _OF_KEY:
            del rest[name]
        ulid = rest.pop("ulid", None)
        return cls(ulid, shared.setdefault(orjson.dumps(rest), rest), earliest_ms, entry_id, op_id)

    def is_row(self, job: Job) -> bool:
        """Return whether the row of a job, with this id and seed, follows from the item."""
        get = self.item.get
        return bool(
            self.ulid == job.ulid
            and get("kind") == job.kind
            and get("priority") == job.priority
            and get("max_attempts") == job.max_attempts
            and get("max_interruptions", DEFAULT_INTERRUPTIONS) == job.max_interruptions
            and get("backoff_ms") == job.backoff_ms
            and get("lease_ms") == job.lease_ms
            and get("binding") == job.binding
            and type(job.not_before_ms) is int
            and job.not_before_ms >= self.earliest_ms
        )


def has_own_manifest(job: Job) -> bool:
    """Return whether the id of a job is the hash of its manifest."""
    return type(job.manifest) is str and text_id(job.manifest) == job.job_id


ScheduleKey = tuple[str, str]
"""The id of a job, and its seed: several ops may schedule one manifest, and only the first has an effect."""


def jobs_scheduled_by(entries: Sequence[LogEntry]) -> dict[ScheduleKey, ScheduledJob]:
    """Return the jobs that accepted entries schedule; an entry that can't be read schedules none."""
    found: dict[ScheduleKey, ScheduledJob] = {}
    shared: dict[bytes, Item] = {}
    for entry in entries:
        if entry.kind == SCHEDULE and entry.accepted == 1:
            try:
                payload = orjson.loads(entry.payload)
                at_ms = payload["at_ms"]
                for item in payload["jobs"]:
                    earliest_ms = max(at_ms, item.get("run_at_ms") or 0)
                    found[item["job_id"], item["seed"]] = ScheduledJob.of(
                        item, earliest_ms, entry.id, entry.op_id, shared
                    )
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return found
