"""Pruned jobs: whether the log allows an op to prune them, by the policies that were in force then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.jobs.records import ENDS
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.retention.ops import SET_RETENTION
from vox_mesh.model.retention.policies import RetentionPolicies, policy_of_op
from vox_mesh.model.retention.pruning import group_of
from vox_mesh.model.retention.subjects import Subject

_SLACK_MS: Final = 1_000  # the maximum difference between the clocks of a mesh
_MAX_DISTANCE_MS: Final = 60_000
"""How far the time that an op states may be from that of its entry."""


class PruningRules:
    """The rules of pruning as the log has them up to an entry: policies, and the number of jobs by kind."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._policies = RetentionPolicies()
        self._jobs: Counter[str] = Counter()

    def hear(self, entry: LogEntry) -> None:
        """Take in the next accepted entry: it may set a policy."""
        if entry.kind != SET_RETENTION:
            return
        with suppress(BadValue, KeyError, TypeError, AttributeError):
            payload = parse(entry.payload)
            policy = policy_of_op(payload)
            key = policy.subject, policy.kind
            self._given = {each: op for each, op in self._given.items() if each != key}
            if payload.get("unset") is not True:
                self._given[key] = payload
            self._policies = RetentionPolicies(map(policy_of_op, self._given.values()))

    def count(self, row: Mapping[str, Any]) -> None:
        """Take in a job that was scheduled."""
        self._jobs[row["kind"]] += 1

    def forget(self, row: Mapping[str, Any]) -> None:
        """Drop a job that was pruned."""
        self._jobs[row["kind"]] -= 1

    def fault(self, row: Mapping[str, Any], at_ms: int) -> str | None:
        """Return why a job may not be pruned at a time; `None` if it may, as far as it itself goes."""
        if row["state"] not in ENDS:
            return f"it is {row['state']}"
        policy = self._policies.of(Subject.JOBS, row["kind"])
        if policy.age_ms is not None and row["ended_ms"] <= at_ms - policy.age_ms + _SLACK_MS:
            return None
        if policy.max_rows is not None and self._count_with(row["kind"]) > policy.max_rows:
            return None
        return "no policy of that time allows it"

    def _count_with(self, kind: str) -> int:
        """Return how many jobs there are of the kinds whose number counts for a kind."""
        group = group_of(self._policies, Subject.JOBS, kind)
        return sum(
            jobs for each, jobs in self._jobs.items() if group_of(self._policies, Subject.JOBS, each) == group
        )


def is_of_time(entry: LogEntry, at_ms: int) -> bool:
    """Return whether an entry was written at about this time."""
    try:
        return abs(Hlc.parse(entry.hlc).wall_ms - at_ms) <= _MAX_DISTANCE_MS
    except BadValue:
        return False
