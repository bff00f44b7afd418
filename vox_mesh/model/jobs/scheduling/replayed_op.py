"""Replayed ops: the accepted ops that change jobs, as the replay of the log reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import orjson

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.oplog.chain import LogEntry, node_of
from vox_mesh.model.retention.pruned_jobs import is_of_time

Item = Mapping[str, Any]
"""The entry of one job in an op."""


class ReplayedOp(NamedTuple):
    """An accepted op that changes jobs."""

    entry_id: int
    op_id: str
    kind: str
    chain: str
    at_ms: int
    payload: Mapping[str, Any]
    moved: list[str]
    lease_until_ms: int | None
    is_timely: bool
    """Whether it states the time of its entry."""

    @classmethod
    def of(cls, entry: LogEntry) -> Self:
        """Return what an entry says. Raises `BadValue`, `KeyError` and others if it can't be read."""
        payload = parse(entry.payload)
        result = {} if entry.result is None else orjson.loads(entry.result)
        # Without a result, it has changed all jobs that it names.
        moved = orjson.loads(result["moved"]) if "moved" in result else [i["job_id"] for i in payload["jobs"]]
        at_ms, lease_until_ms = payload["at_ms"], result.get("lease_until_ms")
        if lease_until_ms is None and "lease_duration_ms" in payload:
            lease_until_ms = at_ms + payload["lease_duration_ms"]
        head = (entry.id, entry.op_id, entry.kind, entry.node_id)
        return cls(*head, at_ms, payload, moved, lease_until_ms, is_of_time(entry, at_ms))

    @property
    def items(self) -> list[Item]:
        items: list[Item] = self.payload["jobs"]
        return items

    @property
    def node_id(self) -> str:
        """Return the node of the author; a CLI command writes a chain of its own on behalf of its node."""
        return node_of(self.chain)
