"""Ops that depend on others: none is applied before those are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from proof.history import History
from proof.reading import finals
from proof.verdicts import Check
from vox_mesh.coordination.deferral import Standing

_ON_NOTHING: Final = "[]"


def ops_in_order(history: History) -> Iterator[str | int]:
    """What was applied at once has all that it depends on before it in the log, accepted."""
    rows = {row["op_id"]: row for row in finals(history, "agent_oplog")}
    for row in rows.values():
        if row["causal_deps"] == _ON_NOTHING or not row["accepted"] or row["reason"] == Standing.DEFERRED:
            continue
        yield 1
        for dep in orjson.loads(row["causal_deps"]):
            found = rows.get(dep)
            if found is None or not found["accepted"] or found["id"] > row["id"]:
                yield f"op {row['op_id']} of {row['node_id']} was applied without {dep}, which it depends on"


DEPENDENCY_CHECKS: Final = (
    Check("ops-in-order", "an op that depends on others is applied after them", ops_in_order),
)
