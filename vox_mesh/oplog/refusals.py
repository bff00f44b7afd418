"""Refusals in the op log: what agents asked for and were not allowed, counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.op_names import ACCESS_REFUSED
from vox_mesh.store.script import Op, Script
from vox_mesh.store.store import Store


class RefusedAccess(NamedTuple):
    """A sort of refusal: of which operation, and why."""

    operation: str
    reason: str


async def record_refusals(store: Store, agent: str, counts: Mapping[RefusedAccess, int]) -> None:
    """Record what an agent was refused. While the database is unreachable, the entry is spooled."""
    refused = [
        {"operation": each.operation, "reason": each.reason, "count": count}
        for each, count in sorted(counts.items())
    ]
    op = Op(ACCESS_REFUSED, canonical({"agent": agent, "refused": refused}), agent=agent)
    await store.write(Script(op=op, appendable=True))
