"""Claim history: where in the log each job was last claimed or aborted, as far as the log was read.

A pending job whose row relies on an earlier op than that was put back by a writer of the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.jobs.records import EXPIRE, YIELD, Job, JobState
from vox_mesh.model.nodes.store_memory import TOKENS_RAISED_BY

_MAX_JOBS: Final = 32_768
"""In each of two generations."""

MAX_BACK: Final = 100_000
"""How many entries before the first one that was read are searched for claims of older jobs."""

_READ_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError)

LoggedClaim = Sequence[Any]
"""An op that claimed or aborted jobs: its entry's id, its payload and its result."""


class OpPlace(NamedTuple):
    """The place in the log of the op that last changed a job."""

    chain: str
    seq: int
    kind: str
    entry_id: int


class ClaimHistory:
    """The entry of the last claim of each job, after a given entry; of too many, the oldest are dropped."""

    def __init__(self) -> None:
        self.position: int | None = None
        """The last entry that was read; `None`: none was."""
        self.start = 0
        """The claims after this entry are known."""
        self._floor = 0
        self._latest: dict[str, int] = {}
        self._earlier: dict[str, int] = {}
        self._latest_since = 0

    def forget(self) -> None:
        """Begin again with the next read: the database was rolled back."""
        self.position, self._latest, self._earlier = None, {}, {}

    def begin(self, last_id: int) -> None:
        """Begin after the last entry of the log."""
        self.position = self.start = self._latest_since = last_id
        self._floor = max(0, last_id - MAX_BACK)

    def learn(self, claims: Iterable[LoggedClaim], last_id: int) -> None:
        """Take in the next claims, up to an entry."""
        self._latest.update(_entries_of(claims))
        self.position = last_id
        if len(self._latest) >= _MAX_JOBS:
            self._earlier, self._latest = self._latest, {}
            self.start = self._floor = self._latest_since
            self._latest_since = last_id

    def learn_earlier(self, claims: Iterable[LoggedClaim], first_id: int) -> None:
        """Take in the claims after an entry, up to the first one that is known."""
        self._earlier = _entries_of(claims) | self._earlier
        self.start = first_id
        if len(self._earlier) >= _MAX_JOBS:
            self._floor = first_id

    def is_missing_since(self, entry_id: int) -> bool:
        """Return whether there may be claims after an entry that were not read, but are near enough."""
        return self.start > max(entry_id, self._floor)

    def last_claim(self, job_id: str) -> int | None:
        """Return the entry of the last known claim of a job."""
        return self._latest.get(job_id) or self._earlier.get(job_id)


def _entries_of(claims: Iterable[LoggedClaim]) -> dict[str, int]:
    entries: dict[str, int] = {}
    for entry_id, payload, result in claims:
        entries.update((job_id, entry_id) for job_id in claimed_jobs(payload, result))
    return entries


def claimed_jobs(payload: str, result: str | None) -> list[str]:
    """Return the ids of the jobs that an accepted op has claimed or aborted."""
    try:
        read = orjson.loads(payload)
        if read.get("renews"):
            return []
        moved = None if result is None else set(orjson.loads(orjson.loads(result)["moved"]))
        job_ids = [item["job_id"] for item in read["jobs"]]
        return [job_id for job_id in job_ids if moved is None or job_id in moved]
    except _READ_ERRORS:
        return []


def is_released_by(job: Job, kind: str, payload: str) -> bool:
    """Return whether an op returned a claimed job to the queue, under the token that its row has.

    A rollback of the database raises the tokens of pending jobs.
    """
    if kind not in (YIELD, EXPIRE):
        return False
    try:
        return any(
            item["job_id"] == job.job_id
            and item.get("state") != JobState.FAILED
            and job.claim_token >= item["claim_token"]
            and (job.claim_token - item["claim_token"]) % TOKENS_RAISED_BY == 0
            for item in orjson.loads(payload)["jobs"]
        )
    except _READ_ERRORS:
        return False
