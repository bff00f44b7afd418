"""Claim history: where in the log each job was last claimed, and where it ended, as far as the log was read.

A pending job whose row relies on an earlier op than that was put back by a writer of the database. An op that
ends a job counts whatever its verdict says: the verdict is not signed.

A job is completed only after a claim. Completions are many and large, so they are read only when there is a
pending job that a claim names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.jobs.records import ABORT, CLAIM, COMPLETE, EXPIRE, YIELD, Job, JobState
from vox_mesh.model.nodes.store_memory import TOKENS_RAISED_BY

_MAX_JOBS: Final = 32_768
"""In each of two generations."""

MAX_BACK: Final = 100_000
"""How many entries before the first one that was read are searched for claims of older jobs."""

_READ_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError)

MAX_ENDS: Final = 8
"""How many ops that end one job are kept. More than one or two are planted."""

_ANY_TOKEN: Final = 2**63

LoggedClaim = Sequence[Any]
"""An op that claims jobs, aborts them or has them fail: its entry's id, its kind, its payload, its result,
and whether it is marked as accepted.
"""

LoggedCompletion = Sequence[Any]
"""The id of the entry of a completion, and the pairs of a job and its claim token as JSON."""


class LoggedEnd(NamedTuple):
    """An op that ends a job, if it was accepted: the token that the job must have, and the op's entry."""

    claim_token: int
    entry_id: int


_Ends = dict[str, tuple[LoggedEnd, ...]]


class OpPlace(NamedTuple):
    """The place in the log of the op that last changed a job."""

    chain: str
    seq: int
    kind: str
    entry_id: int


class ClaimHistory:
    """The entries of the last claim of each job, and of its ends, after a given entry.

    Of too many jobs, the oldest are dropped.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        """The last entry that was read; `None`: none was."""
        self.start = 0
        """The claims after this entry are known."""
        self._floor = 0
        self._latest: dict[str, int] = {}  # 0: a claim that names the job is marked as refused
        self._earlier: dict[str, int] = {}
        self._latest_ends: _Ends = {}
        self._earlier_ends: _Ends = {}
        self._latest_since = 0
        self._completions_since = 0
        self._completions_until = 0

    def forget(self) -> None:
        """Begin again with the next read: the database was rolled back."""
        self.position, self._latest, self._earlier = None, {}, {}
        self._latest_ends, self._earlier_ends = {}, {}

    def begin(self, last_id: int) -> None:
        """Begin after the last entry of the log."""
        self.position = self.start = self._latest_since = last_id
        self._completions_since = self._completions_until = last_id
        self._floor = max(0, last_id - MAX_BACK)

    def learn(self, claims: Iterable[LoggedClaim], last_id: int) -> None:
        """Take in the next claims, up to an entry."""
        for job_id, entry_id in _claims_of(claims).items():
            self._latest[job_id] = entry_id or self.last_claim(job_id) or 0
        _add_ends(self._latest_ends, _other_ends(claims))
        self.position = last_id
        self._drop_oldest()

    def learn_earlier(self, claims: Iterable[LoggedClaim], first_id: int) -> None:
        """Take in the claims after an entry, up to the first one that is known."""
        for job_id, entry_id in _claims_of(claims).items():
            self._earlier[job_id] = self._earlier.get(job_id) or entry_id
        _add_ends(self._earlier_ends, _other_ends(claims))
        self.start = first_id
        self._stop_at(first_id)

    def next_completions(self, limit: int) -> tuple[int, int] | None:
        """Return the entries between which completions are to be read next; `None` if all are known."""
        until, since = self._completions_until, self._completions_since
        if self.position is not None and until < self.position:
            return until, min(self.position, until + limit)
        return (max(self.start, since - limit), since) if self.start < since else None

    def learn_completions(self, completions: Iterable[LoggedCompletion], after: int, until: int) -> None:
        """Take in the completions after an entry, up to another, as `next_completions` named them."""
        ended = ((entry_id, _completed_jobs(pairs)) for entry_id, pairs in completions)
        if until > self._completions_until:
            _add_ends(self._latest_ends, ended)
            self._completions_until = until
            self._drop_oldest()
        else:
            _add_ends(self._earlier_ends, ended)
            self._completions_since = after
            self._stop_at(after)

    def _drop_oldest(self) -> None:
        """Drop the earlier half when the later one is full."""
        if max(len(self._latest), len(self._latest_ends)) >= _MAX_JOBS:
            self._earlier, self._latest = self._latest, {}
            self._earlier_ends, self._latest_ends = self._latest_ends, {}
            self.start = self._floor = self._latest_since
            self._latest_since = self.position or 0
            self._completions_since = max(self._completions_since, self.start)
            self._completions_until = max(self._completions_until, self.start)

    def _stop_at(self, first_id: int) -> None:
        """Go no further back than an entry if the earlier half is full."""
        if max(len(self._earlier), len(self._earlier_ends)) >= _MAX_JOBS:
            self._floor = first_id

    def is_missing_since(self, entry_id: int) -> bool:
        """Return whether there may be claims after an entry that were not read, but are near enough."""
        return self.start > max(entry_id, self._floor)

    def names(self, job_id: str) -> bool:
        """Return whether an op is known that claims the job or ends it, whatever its verdict."""
        ends = job_id in self._latest_ends or job_id in self._earlier_ends
        return ends or job_id in self._latest or job_id in self._earlier

    def last_claim(self, job_id: str) -> int | None:
        """Return the entry of the last known claim of a job that was marked as accepted."""
        return self._latest.get(job_id) or self._earlier.get(job_id) or None

    def ends(self, job_id: str, claim_token: int) -> list[LoggedEnd]:
        """Return the known ends of a job under this claim token or a later one, at most `MAX_ENDS`."""
        known = (*self._earlier_ends.get(job_id, ()), *self._latest_ends.get(job_id, ()))
        return [end for end in known if end.claim_token >= claim_token][-MAX_ENDS:]


def _claims_of(ops: Iterable[LoggedClaim]) -> dict[str, int]:
    """Return the jobs that ops claim, with the last entry that is marked as accepted, or 0."""
    entries: dict[str, int] = {}
    for entry_id, kind, payload, result, is_accepted in ops:
        if kind == CLAIM:
            named = claimed_jobs(payload, None)
            claimed = named if result is None else claimed_jobs(payload, result)
            entries = dict.fromkeys(named, 0) | entries
            entries.update((job_id, entry_id) for job_id in (claimed if is_accepted else ()))
    return entries


def _other_ends(ops: Iterable[LoggedClaim]) -> Iterator[tuple[int, dict[str, int]]]:
    return ((op[0], ended_jobs(op[1], op[2])) for op in ops if op[1] != CLAIM)


def _add_ends(ends: _Ends, ops: Iterable[tuple[int, dict[str, int]]]) -> None:
    for entry_id, ended in ops:
        for job_id, token in ended.items():
            ends[job_id] = (*ends.get(job_id, ())[1 - MAX_ENDS :], LoggedEnd(token, entry_id))


def _completed_jobs(pairs: str) -> dict[str, int]:
    try:
        return {job_id: int(token) for job_id, token in orjson.loads(pairs)}
    except _READ_ERRORS:
        return {}


def claimed_jobs(payload: str, result: str | None) -> list[str]:
    """Return the ids of the jobs that an accepted op has claimed."""
    try:
        read = orjson.loads(payload)
        if read.get("renews"):
            return []
        moved = None if result is None else moved_jobs(result)
        job_ids = [item["job_id"] for item in read["jobs"]]
        return [job_id for job_id in job_ids if moved is None or job_id in moved]
    except _READ_ERRORS:
        return []


def moved_jobs(result: str) -> set[str]:
    """Return which of its jobs an accepted op has changed, by its result, which is not signed."""
    try:
        return set(orjson.loads(orjson.loads(result)["moved"]))
    except _READ_ERRORS:
        return set()


def ended_jobs(kind: str, payload: str) -> dict[str, int]:
    """Return the jobs that an op ends if it is accepted, and the claim token that each must have.

    Only a job that has ended before can't be aborted, so an abort ends a job under any token.
    """
    try:
        if kind == ABORT:
            return {item["job_id"]: _ANY_TOKEN for item in orjson.loads(payload)["jobs"]}
        if kind not in (COMPLETE, EXPIRE):
            return {}
        return {
            item["job_id"]: int(item["claim_token"])
            for item in orjson.loads(payload)["jobs"]
            if kind == COMPLETE or item.get("state") == JobState.FAILED
        }
    except _READ_ERRORS:
        return {}


def released_token(job: Job, kind: str, payload: str) -> int | None:
    """Return the token whose claim an op ended, if it returned the job to the queue as its row has it.

    A rollback of the database raises the tokens of pending jobs.
    """
    if kind not in (YIELD, EXPIRE):
        return None
    try:
        for item in orjson.loads(payload)["jobs"]:
            if item["job_id"] == job.job_id and item.get("state") != JobState.FAILED:
                raised_by = job.claim_token - item["claim_token"]
                return int(item["claim_token"]) if raised_by >= 0 == raised_by % TOKENS_RAISED_BY else None
    except _READ_ERRORS:
        return None
    return None
