"""Moves: the ops that take jobs from state to state, each with its effect in the same script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import orjson

from vox_mesh.errors import IllegalTransition, StaleClaim
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import ABORT, CLAIM, COMPLETE, EXPIRE, SCHEDULE, START, YIELD, JobState
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Op, Script, Statement, new_key
from vox_mesh.store.store import Store

SQL: Final = named("jobs")

NOT_ALL: Final = "not_all"
"""The reason why the short way was refused: the long way tells more."""

_ILLEGAL: Final = IllegalTransition.code
_STALE: Final = StaleClaim.code
_PLACE: Final = re.compile(r"\?(\d+)")

Item = Mapping[str, Any]
"""What an op says of one job."""


class JobTransitions:
    """Writes the scripts. An op may move many jobs; those that answer tell which it did move."""

    def __init__(self, store: Store, writer: OpLogWriter, clock: MeshClock) -> None:
        self._mesh = store.tenant[:2]
        self._writer = writer
        self._clock = clock

    def schedule(self, items: Sequence[Item], *effects: Statement, key: str | None = None) -> Script:
        """Schedule jobs that are not there yet, and what goes with it; all of them, or none."""
        op = self._op(SCHEDULE, {"jobs": items}, self._writer.identity.chain, key)
        steps = [op.guarded("schedule", "ulid_taken")]
        if any(item.get("after") for item in items):
            steps += [
                op.step("link"),
                op.guarded("refuse_unknown_predecessor", "unknown_predecessor"),
                op.guarded("refuse_failed_predecessor", "predecessor_failed"),
                op.step("wait"),
            ]
        return op.script(*steps, *effects)

    def take(self, items: Sequence[Item], begun: Sequence[Item], lease_ms: int) -> tuple[Script, Script]:
        """Claim and start jobs that nothing holds back, all of them or none: the short way.

        Refused as `not_all`, some of them may still be had, the long way.
        """
        claim = self._op(CLAIM, {"jobs": items, "lease_duration_ms": lease_ms}, self._node, None, lease_ms)
        start = self._op(START, {"jobs": begun}, self._node)
        return (
            claim.script(claim.step("take"), claim.guarded("refuse_unless_all", NOT_ALL)),
            start.script(start.step("start"), start.guarded("refuse_unless_all", NOT_ALL)),
        )

    def claim(self, items: Sequence[Item], lease_ms: int) -> Script:
        """Claim those that are still to be had under the tokens that follow."""
        op = self._op(CLAIM, {"jobs": items, "lease_duration_ms": lease_ms}, self._node, None, lease_ms)
        return op.script(
            op.step("claim"),
            op.guarded("refuse_routed_elsewhere", "routed_elsewhere"),
            op.guarded("refuse_held_back", "held_back"),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            op.step("record_claims"),
            op.step("forget_claims"),
            answer=op.answer("leased", "moved", "lease_until_ms"),
        )

    def renew(self, items: Sequence[Item], lease_ms: int) -> Script:
        """Claim again what is still held."""
        op = self._op(
            CLAIM, {"jobs": items, "lease_duration_ms": lease_ms, "renews": True}, self._node, None, lease_ms
        )
        return op.script(
            op.step("renew"),
            op.guarded("refuse_stale_lease", _STALE),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            answer=op.answer("leased", "moved", "lease_until_ms"),
        )

    def start(self, items: Sequence[Item]) -> Script:
        """Begin to work on what was claimed."""
        op = self._op(START, {"jobs": items}, self._node)
        return op.script(
            op.step("start"),
            op.guarded("refuse_stale_lease", _STALE),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            answer=op.answer("moved", "moved"),
        )

    def finish(self, items: Sequence[Item], *effects: Statement, proofs: Sequence[Item]) -> Script:
        """End jobs that no other waits for, all of them or none: the short way of `complete`."""
        op = self._ends(items, proofs)
        short = (op.step("finish"), op.guarded("refuse_unless_all", NOT_ALL))
        return op.script(*short, *effects)

    def complete(
        self, items: Sequence[Item], *effects: Statement, proofs: Sequence[Item] | None = None
    ) -> Script:
        """End jobs, with their results; all of them, or none. While the database is away, it waits.

        The proofs, one for each, are for the log: no statement reads them.
        """
        op = self._ends(items, proofs)
        steps = [
            op.step("complete"),
            op.guarded("refuse_stale_claim", _STALE),
            op.guarded("refuse_unless_all_moved", _ILLEGAL),
            op.guarded("refuse_without_snapshot", "inference_not_recorded"),
        ]
        if any(item["state"] != JobState.SUCCEEDED for item in items):
            steps.append(op.step("doom"))
        return op.script(*steps, op.step("release"), *effects, appendable=True)

    def _ends(self, items: Sequence[Item], proofs: Sequence[Item] | None) -> _Move:
        told = None if proofs is None else [{**i, "proof": p} for i, p in zip(items, proofs, strict=True)]
        return self._op(COMPLETE, {"jobs": items}, self._node, told=told)

    def give_back(self, items: Sequence[Item], *, claimer: str | None = None) -> Script:
        """Yield jobs: all of them, or none. Without a claimer, whoever has them."""
        op = self._op(YIELD, {"jobs": items}, claimer)
        return op.script(
            op.step("give_back"),
            op.guarded("refuse_stale_claim", _STALE),
            op.guarded("refuse_unless_all_moved", _ILLEGAL),
            appendable=True,
        )

    def expire(self, items: Sequence[Item]) -> Script:
        """Take back those whose lease has run out."""
        op = self._op(EXPIRE, {"jobs": items})
        return self._ending(op, "expire")

    def abort(self, items: Sequence[Item], reason: str) -> Script:
        """End those that have not ended."""
        op = self._op(ABORT, {"jobs": items, "reason": reason})
        return self._ending(op, "abort")

    def _ending(self, op: _Move, name: str) -> Script:
        return op.script(
            op.step(name),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            op.step("doom"),
            op.step("release"),
            answer=op.answer("moved", "moved"),
        )

    @property
    def _node(self) -> str:
        return self._writer.identity.node_id

    def _op(
        self,
        kind: str,
        payload: Mapping[str, Any],
        author: str | None = None,
        key: str | None = None,
        more: Value = None,
        told: Sequence[Item] | None = None,
    ) -> _Move:
        """An op; what it has to tell of the jobs may be more than its statements need."""
        at_ms = self._clock.now_ms
        if told is None:
            text = whole = canonical({**payload, "at_ms": at_ms})
        else:
            text = orjson.dumps({**payload, "at_ms": at_ms}).decode()
            whole = canonical({**payload, "at_ms": at_ms, "jobs": told})
        return _Move(kind, whole, (*self._mesh, new_key() if key is None else key, text, author, more))


class _Move:
    """One op in the making: its statements all have the same values."""

    def __init__(self, kind: str, payload: str, values: Sequence[Value]) -> None:
        self._kind = kind
        self._payload = payload
        self._values = values

    def step(self, name: str) -> Statement:
        return Statement(SQL[name], self._values[: _values_of(name)])

    def guarded(self, name: str, refusal: str) -> Statement:
        return Statement(SQL[name], self._values[: _values_of(name)], refusal=refusal)

    def answer(self, name: str, *columns: str) -> Answer:
        return Answer(SQL[name], self._values[: _values_of(name)], columns)

    def script(
        self, *statements: Statement, answer: Answer | None = None, appendable: bool = False
    ) -> Script:
        key = str(self._values[2])
        op = Op(self._kind, self._payload)
        script = Script(*statements, answer=answer, key=key, op=op, appendable=appendable)
        script.may_come_again = False  # its key is of our own making
        return script


@cache
def _values_of(name: str) -> int:
    """How many values the statement takes."""
    return max(int(place[1]) for place in _PLACE.finditer(SQL[name]))
