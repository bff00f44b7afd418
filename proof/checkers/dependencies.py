"""Ops with dependencies: none is applied before those."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row
from proof.history import History
from proof.losses import Losses
from proof.verdicts import Check
from vox_mesh.model.jobs.records import JOB_OPS
from vox_mesh.model.oplog.op_names import APPLY, DROP
from vox_mesh.oplog.pending_ops import DependencyState

_ON_NOTHING: Final = "[]"
_OF_OTHERS: Final = (APPLY, DROP)
"""The outcomes of a deferred op: such an entry depends on the op."""


def ops_in_order(history: History) -> Iterator[str | int]:
    """Every applied op, deferred or not, has all of its dependencies applied before it.

    A cause of a job's op that a node has read just before a rollback may be lost.
    """
    losses = Losses(history)
    accepted = [row for row in log_rows(history) if row["accepted"]]
    applied = _applied(accepted)
    for row in accepted:
        is_free = row["causal_deps"] == _ON_NOTHING or row["kind"] in _OF_OTHERS
        if is_free or row["op_id"] not in applied:
            continue
        yield 1
        for dep in orjson.loads(row["causal_deps"]):
            is_lost = bool(losses) and dep not in applied and row["kind"] in JOB_OPS
            if not is_lost and applied.get(dep, math.inf) >= applied[row["op_id"]]:
                yield f"op {row['op_id']} of {row['node_id']} was applied without {dep}, which it depends on"


def _applied(accepted: list[Row]) -> dict[str, int]:
    """Return the entry with which each op took effect: its own, or that of the end of its deferral."""
    own = {row["op_id"]: row["id"] for row in accepted if row["reason"] != DependencyState.DEFERRED}
    later = {orjson.loads(row["payload"])["op"]: row["id"] for row in accepted if row["kind"] == APPLY}
    return own | later


DEPENDENCY_CHECKS: Final = (
    Check("ops-in-order", "an op that depends on others is applied after them", ops_in_order),
)
