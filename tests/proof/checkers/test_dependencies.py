"""What the judge of ops that depend on others finds, and what it has nothing against."""

from __future__ import annotations

from typing import Any

from proof.checkers.dependencies import DEPENDENCY_CHECKS
from tests.proof.checkers.story import Story, faults
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.op_names import APPLY, DROP
from vox_mesh.oplog.pending_ops import DependencyState


class _Log:
    """Entries, one after the other."""

    def __init__(self) -> None:
        self._story = Story()
        self._length = 0

    def entry(
        self, op_id: str, *deps: str, kind: str = "proof.note", payload: Any = None, **more: Any
    ) -> None:
        self._length += 1
        text = {"accepted": 1, "reason": None} | more
        self._story.final(
            "agent_oplog",
            id=self._length,
            node_id="ada",
            op_id=op_id,
            kind=kind,
            causal_deps=canonical(deps),
            payload=canonical(payload or {}),
            **text,
        )

    def deferred(self, op_id: str, *deps: str) -> None:
        self.entry(op_id, *deps, reason=DependencyState.DEFERRED)

    def settled(self, op_id: str, kind: str = APPLY) -> None:
        self.entry(f"{kind} {op_id}", op_id, kind=kind, payload={"op": op_id})

    @property
    def faults(self) -> list[str]:
        return faults(DEPENDENCY_CHECKS, "ops-in-order", self._story)


def test_what_has_waited_for_its_turn_is_all_right() -> None:
    log = _Log()
    log.deferred("late", "first", "second")
    log.deferred("last", "late")
    log.entry("first")
    log.entry("second", "first")
    log.settled("late")
    log.settled("last")
    log.deferred("hopeless", "never")
    log.settled("hopeless", DROP)
    assert log.faults == []


def test_what_was_applied_without_what_it_depends_on_is_found() -> None:
    log = _Log()
    log.entry("early", "first")
    log.entry("first")
    log.entry("refused", accepted=0)
    log.entry("on refused", "refused")
    log.deferred("waits", "absent")
    log.entry("on what waits", "waits")
    log.settled("waits")
    text = log.faults
    assert [each.split(" was applied without ")[0] for each in text] == [
        "op early of ada",
        "op on refused of ada",
        "op waits of ada",
        "op on what waits of ada",
    ]
