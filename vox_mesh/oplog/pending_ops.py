"""Pending ops: ops that wait for others are applied by any node that sees their last dependency applied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import NotKnown, Refused, ScriptFailed
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.ulid import derive_ulid
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import APPLY, DROP
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.op_kinds import AuthoredOp, OpKinds
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("deferred")
_OPLOG: Final = named("oplog")
_MAX_BATCH: Final = 64
_NOT_WAITING: Final = "not_waiting"
_LOST_STATES: Final = ("refused", "dropped")


class DependencyState(StrEnum):
    """What follows for an op from the ops it depends on."""

    APPLIED = "applied"
    DEFERRED = "deferred"
    REFUSED = "refused"


class PendingOp(NamedTuple):
    """An op that was not applied, and what it waits for; `dropped` says why it never will be applied."""

    op_id: str
    node_id: str
    kind: str
    dropped: str | None
    waits_for: list[dict[str, Any]]


def no_such_op(op_id: str) -> NotKnown:
    """Return the error for an op id that is not in the log."""
    return NotKnown(
        f"op {op_id!r} not found in the log", hint="run `vox-mesh oplog tail` to see the latest ops"
    )


class PendingOps:
    """Store ops that can't be applied yet, and apply them when they can."""

    def __init__(self, store: Store, clock: MeshClock, kinds: OpKinds, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._clock = clock
        self._kinds = kinds
        self._trusted_keys = trusted_keys
        self._is_any = asyncio.Event()
        self.forged = 0
        """How many ops were dropped here because their authors had not signed them."""

    async def state_after(self, deps: Sequence[str]) -> DependencyState:
        """Return what follows from these dependencies, and merge their times into the clock."""
        rows = await self._deps(deps)
        for row in rows:
            if row["hlc"] is not None:
                self._clock.receive(row["hlc"])
        found = {row["standing"] for row in rows}
        if found & {*_LOST_STATES}:
            return DependencyState.REFUSED
        return DependencyState.APPLIED if found <= {"applied"} else DependencyState.DEFERRED

    def applied_guard(self, deps: Sequence[str]) -> Statement:
        """Return a guard that refuses a script unless these ops are still applied."""
        values = (*self._store.mesh_id, _array(deps))
        return Statement(_SQL["refuse_unless_applied"], values, refusal="dependency_lost")

    def defer(self, op_id: str, deps: Sequence[str]) -> tuple[Statement, ...]:
        """Return the statements that defer an op."""
        self._is_any.set()
        values = (*self._store.mesh_id, op_id, _array(deps))
        cycle = Statement(_SQL["refuse_cycle"], values, refusal="dependency_cycle")
        return cycle, Statement(_SQL["defer"], values)

    async def waiting(self, limit: int = 100) -> list[PendingOp]:
        """Return the ops that were not applied, oldest first, and what each waits for."""
        return [await self._describe(row) for row in await self._read("all", limit)]

    async def waiting_for(self, op_id: str) -> PendingOp | None:
        """Return what an op waits for, or `None` if it was applied; raise `NotKnown` for an unknown op."""
        if not await self._entries_of(op_id):
            raise no_such_op(op_id)
        rows = await self._read("one", op_id)
        return await self._describe(rows[0]) if rows else None

    async def _describe(self, row: Row) -> PendingOp:
        deps = await self._deps(orjson.loads(row["causal_deps"]))
        waits_for = [
            {"op_id": dep["op_id"], "standing": dep["standing"]}
            for dep in deps
            if dep["standing"] != "applied"
        ]
        return PendingOp(row["op_id"], row["node_id"], row["kind"], row["dropped"], waits_for)

    # --- applying --------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Check whether any op is deferred: only then is there anything to watch."""
        if (await self._read("is_any_waiting")).value:
            self._is_any.set()
        else:
            self._is_any.clear()

    async def wait_until_any(self) -> None:
        """Wait until there is a deferred op."""
        await self._is_any.wait()

    async def run_once(self) -> int:
        """Apply or drop all ops whose dependencies are decided. Return how many there were."""
        done: set[str] = set()
        rows = await self._read_decided()
        while new := [row["op_id"] for row in rows if row["op_id"] not in done]:
            self._clock.refuse_if_off()
            for op_id in new:
                await self._decide(op_id)
            done.update(new)  # an op that another process defers again is not decided twice
            rows = await self._read_decided(fresh=True)  # ops that depended on these
        return len(done)

    async def _read_decided(self, *, fresh: bool = False) -> Rows:
        return await self._read("decided", _MAX_BATCH, _array(list(self._kinds)), fresh=fresh)

    async def _decide(self, op_id: str) -> None:
        entries = await self._entries_of(op_id)
        if not entries:
            return  # a rollback has lost it since we looked
        (entry,) = entries
        has_waited = (entry.accepted, entry.reason) == (1, DependencyState.DEFERRED)
        if not has_waited or not await self._trusted_keys.is_authentic(entry):
            self.forged += 1
            await self._drop(entry, "forged")
            return
        deps = await self._deps(orjson.loads(entry.causal_deps), fresh=True)
        if any(dep["standing"] in _LOST_STATES for dep in deps):
            await self._drop(entry, "dependency_refused")
            return
        if any(dep["standing"] != "applied" for dep in deps):
            return  # a rollback has lost one of them since: the op waits again
        for dep in deps:
            self._clock.receive(dep["hlc"])
        try:
            await self._apply(entry)
        except ScriptFailed as error:
            reason = error.reason if isinstance(error, Refused) else error.code
            if reason != _NOT_WAITING:  # another node was quicker
                await self._drop(entry, reason)

    async def _apply(self, entry: LogEntry) -> None:
        authored = AuthoredOp(entry.op_id, entry.node_id, parse(entry.payload))
        try:
            effects = self._kinds[entry.kind].effects(authored)
        except Exception:  # a failing kind must not block the ops that depend on this one
            _log.exception(
                "deferred op has an unusable payload: op_id=%s node_id=%s", entry.op_id, entry.node_id
            )
            await self._drop(entry, "bad_payload")
            return
        applied = Statement(_SQL["applied"], self._op_values(entry))
        await self._settle(APPLY, entry, {"op": entry.op_id}, applied, *effects)
        _log.info("deferred op applied: kind=%s node_id=%s op_id=%s", entry.kind, entry.node_id, entry.op_id)

    async def _drop(self, entry: LogEntry, reason: str) -> None:
        dropping = Statement(_SQL["drop"], (*self._op_values(entry), reason))
        try:
            await self._settle(DROP, entry, {"op": entry.op_id, "reason": reason}, dropping)
        except ScriptFailed:
            return  # another node was quicker
        _log.warning("deferred op dropped: op_id=%s node_id=%s reason=%s", entry.op_id, entry.node_id, reason)

    async def _settle(self, kind: str, entry: LogEntry, payload: dict[str, Any], *effects: Statement) -> None:
        """Write the decision; every node that tries sends the same script, so it takes effect once."""
        guard = Statement(_SQL["refuse_unless_waiting"], self._op_values(entry), refusal=_NOT_WAITING)
        op = Op(kind, canonical(payload), (entry.op_id,))
        await self._store.write(Script(guard, *effects, key=derive_ulid(entry.op_id, kind), op=op))

    def _op_values(self, entry: LogEntry) -> tuple[str, str, str]:
        return (*self._store.mesh_id, entry.op_id)

    # --- reading ---------------------------------------------------------------------------------

    async def _entries_of(self, op_id: str) -> list[LogEntry]:
        values = (*self._store.mesh_id, _array([op_id]))
        return [LogEntry._make(row) for row in await self._store.read(_OPLOG["entries_of"], values)]

    async def _deps(self, deps: Sequence[str], *, fresh: bool = False) -> Rows:
        return await self._read("standing_of", _array(deps), fresh=fresh)

    async def _read(self, name: str, *values: Value, fresh: bool = False) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.mesh_id, *values), fresh=fresh)


def _array(texts: Sequence[str]) -> str:
    return orjson.dumps(texts).decode()
