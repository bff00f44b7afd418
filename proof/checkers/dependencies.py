"""Ops that depend on others: none is applied before those are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import orjson

from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from vox_mesh.oplog.op_kinds import APPLY, DROP
from vox_mesh.oplog.pending_ops import DependencyState

_ON_NOTHING: Final = "[]"
_OF_OTHERS: Final = (APPLY, DROP)
"""What becomes of an op that waits: such an entry names it as what it depends on."""


def ops_in_order(history: History) -> Iterator[str | int]:
    """What was applied, at once or after it had waited, has all that it depends on applied before it."""
    accepted = [row for row in final_rows(history, "agent_oplog") if row["accepted"]]
    applied = _applied(accepted)
    for row in accepted:
        is_free = row["causal_deps"] == _ON_NOTHING or row["kind"] in _OF_OTHERS
        if is_free or row["op_id"] not in applied:
            continue
        yield 1
        for dep in orjson.loads(row["causal_deps"]):
            if applied.get(dep, math.inf) >= applied[row["op_id"]]:
                yield f"op {row['op_id']} of {row['node_id']} was applied without {dep}, which it depends on"


def _applied(accepted: list[Row]) -> dict[str, int]:
    """With which entry each op took effect: its own, or the one that says that it has waited enough."""
    own = {row["op_id"]: row["id"] for row in accepted if row["reason"] != DependencyState.DEFERRED}
    later = {orjson.loads(row["payload"])["op"]: row["id"] for row in accepted if row["kind"] == APPLY}
    return own | later


DEPENDENCY_CHECKS: Final = (
    Check("ops-in-order", "an op that depends on others is applied after them", ops_in_order),
)
