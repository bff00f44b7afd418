"""The check of approvals finds what was applied twice, never, too early, otherwise, or without one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proof.checkers.approvals import APPROVAL_CHECKS
from tests.proof.checkers.story import Story, faults


def _story(*ops: dict[str, Any], approved: bool = True, refused: bool = False) -> Story:
    story = Story()
    asked = {"operation": "BreakLock", "arguments": {"key": "a"}, "applied_as": "done"}
    rows: list[dict[str, Any]] = [{"op_id": "ask", "kind": "RequestApproval", "payload": asked, "grant": "g"}]
    if approved:
        rows.append({"op_id": "yes", "kind": "Approve", "payload": {"approval": "ask"}})
    if refused:
        rows.append({"op_id": "done", "kind": "BreakLock", "payload": {"key": "a"}, "accepted": 0})
    rows += [{**_DONE, "op_id": f"op{number}", **op} for number, op in enumerate(ops)]
    for number, row in enumerate(rows):
        row = {"id": number, "accepted": 1, "grant": None, "deps": [], **row}
        row |= {"payload": orjson.dumps(row["payload"]).decode()}
        story.final("agent_oplog", **row, causal_deps=orjson.dumps(row["deps"]).decode())
    return story


_DONE = {"kind": "BreakLock", "payload": {"key": "a", "at_ms": 1}, "grant": "g", "deps": ["ask", "yes"]}


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_story({}), ""),
        (_story(approved=False), ""),
        (_story(refused=True), ""),
        (_story({}, {}), "applied 2 times"),
        (_story(), "applied 0 times"),
        (_story({}, refused=True), "applied 1 times"),
        (_story({}, approved=False), "applied 1 times; given: False"),
        (_story({}, {"deps": []}), "names no approval"),
        (_story({"payload": {"key": "b"}}), "is not what approval ask was asked for"),
        (_story({"kind": "ScheduleJob"}), "is not what approval ask was asked for"),
        (_story({"id": 0}), "comes before"),
    ],
)
def test_approvals_applied_otherwise_than_once_as_asked_are_found(story: Story, fault: str) -> None:
    found = " ".join(faults(APPROVAL_CHECKS, "approval-applied-once", story))
    assert fault in found
    assert bool(found) is bool(fault)
