"""Deferral: ops that wait for others, and are applied by whichever node sees the last one arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import NotKnown, Refused, ScriptFailed
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.ulid import derived
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import Key, is_authentic
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.op_kinds import APPLY, DROP, Authored, Kinds
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("deferred")
_OPLOG: Final = named("oplog")
_AT_ONCE: Final = 64
_NOT_WAITING: Final = "not_waiting"
_LOST: Final = ("refused", "dropped")


class DependencyState(StrEnum):
    """What follows for an op from those it depends on."""

    APPLIED = "applied"
    DEFERRED = "deferred"
    REFUSED = "refused"


class Waiting(NamedTuple):
    """An op that was not applied, and what it waits for; `dropped` says why it never will be."""

    op_id: str
    node_id: str
    kind: str
    dropped: str | None
    waits_for: list[dict[str, Any]]


def no_such_op(op_id: str) -> NotKnown:
    """Nobody has authored an op with this id."""
    return NotKnown(f"the log has no op {op_id!r}", hint="see `vox-mesh oplog tail`")


class Deferral:
    """Keeps ops that can't be applied yet, and applies them when they can."""

    def __init__(self, store: Store, clock: MeshClock, kinds: Kinds) -> None:
        self._store = store
        self._clock = clock
        self._kinds = kinds
        self._pages = Pages(store)
        self._is_any = asyncio.Event()
        self.forged = 0
        """How many ops were dropped here because their authors have not signed them."""

    async def standing_of(self, deps: Sequence[str]) -> DependencyState:
        """What follows from these; their times are merged, so that what depends on them is later."""
        rows = await self._deps(deps)
        for row in rows:
            if row["hlc"] is not None:
                self._clock.receive(row["hlc"])
        found = {row["standing"] for row in rows}
        if found & {*_LOST}:
            return DependencyState.REFUSED
        return DependencyState.APPLIED if found <= {"applied"} else DependencyState.DEFERRED

    def applied_guard(self, deps: Sequence[str]) -> Statement:
        """Refuse a script unless these ops are still applied."""
        values = (*self._store.tenant[:2], _array(deps))
        return Statement(_SQL["refuse_unless_applied"], values, refusal="dependency_lost")

    def defer(self, op_id: str, deps: Sequence[str]) -> tuple[Statement, ...]:
        """The statements that have an op wait."""
        self._is_any.set()
        values = (*self._store.tenant[:2], op_id, _array(deps))
        cycle = Statement(_SQL["refuse_cycle"], values, refusal="dependency_cycle")
        return cycle, Statement(_SQL["defer"], values)

    async def waiting(self, limit: int = 100) -> list[Waiting]:
        """The ops that were not applied, oldest first, and what each waits for."""
        return [await self._told(row) for row in await self._read("all", limit)]

    async def waiting_for(self, op_id: str) -> Waiting | None:
        """What an op waits for; `None` if it was applied."""
        if not await self._entries_of(op_id):
            raise no_such_op(op_id)
        rows = await self._read("one", op_id)
        return await self._told(rows[0]) if rows else None

    async def _told(self, row: Row) -> Waiting:
        deps = await self._deps(orjson.loads(row["causal_deps"]))
        waits_for = [
            {"op_id": dep["op_id"], "standing": dep["standing"]}
            for dep in deps
            if dep["standing"] != "applied"
        ]
        return Waiting(row["op_id"], row["node_id"], row["kind"], row["dropped"], waits_for)

    # --- applying --------------------------------------------------------------------------------

    async def look(self) -> None:
        """See whether any op waits: only then is there anything to watch."""
        if (await self._read("is_any_waiting")).value:
            self._is_any.set()
        else:
            self._is_any.clear()

    async def someone_waits(self) -> None:
        """Wait until an op waits for others."""
        await self._is_any.wait()

    async def run_once(self) -> int:
        """Apply, or drop, all ops that wait for nothing any more; how many there were."""
        done: set[str] = set()
        rows = await self._decided()
        while new := [row["op_id"] for row in rows if row["op_id"] not in done]:
            self._clock.refuse_if_off()
            for op_id in new:
                await self._decide(op_id)
            done.update(new)  # one that is made to wait again, behind our back, is not decided again
            rows = await self._decided(fresh=True)  # those that waited for these
        return len(done)

    async def _decided(self, *, fresh: bool = False) -> Rows:
        return await self._read("decided", _AT_ONCE, _array(list(self._kinds)), fresh=fresh)

    async def _decide(self, op_id: str) -> None:
        entries = await self._entries_of(op_id)
        if not entries:
            return  # a rollback has lost it since we looked
        (entry,) = entries
        has_waited = (entry.accepted, entry.reason) == (1, DependencyState.DEFERRED)
        if not has_waited or not await self.is_authentic(entry):
            self.forged += 1
            await self._drop(entry, "forged")
            return
        deps = await self._deps(orjson.loads(entry.causal_deps), fresh=True)
        if any(dep["standing"] in _LOST for dep in deps):
            await self._drop(entry, "dependency_refused")
            return
        if any(dep["standing"] != "applied" for dep in deps):
            return  # a rollback has lost one of them since we looked: it waits again
        for dep in deps:
            self._clock.receive(dep["hlc"])
        try:
            await self._apply(entry)
        except ScriptFailed as error:
            reason = error.reason if isinstance(error, Refused) else error.code
            if reason != _NOT_WAITING:  # another node was quicker
                await self._drop(entry, reason)

    async def _apply(self, entry: LogEntry) -> None:
        authored = Authored(entry.op_id, entry.node_id, parse(entry.payload))
        try:
            effects = self._kinds[entry.kind].effects(authored)
        except Exception:  # whatever its kind makes of it, those behind it must not wait for ever
            _log.exception("%s of %s has a payload that its kind can't apply", entry.op_id, entry.node_id)
            await self._drop(entry, "bad_payload")
            return
        applied = Statement(_SQL["applied"], self._of(entry))
        await self._settle(APPLY, entry, {"op": entry.op_id}, applied, *effects)
        _log.info("applied %s of %s, which had waited: %s", entry.kind, entry.node_id, entry.op_id)

    async def _drop(self, entry: LogEntry, reason: str) -> None:
        dropping = Statement(_SQL["drop"], (*self._of(entry), reason))
        try:
            await self._settle(DROP, entry, {"op": entry.op_id, "reason": reason}, dropping)
        except ScriptFailed:
            return  # another node was quicker
        _log.warning("%s of %s can never be applied: %s", entry.op_id, entry.node_id, reason)

    async def _settle(self, kind: str, entry: LogEntry, payload: dict[str, Any], *effects: Statement) -> None:
        """Every node that tries sends the same script, so it takes effect once."""
        still = Statement(_SQL["refuse_unless_waiting"], self._of(entry), refusal=_NOT_WAITING)
        op = Op(kind, canonical(payload), (entry.op_id,))
        await self._store.write(Script(still, *effects, key=derived(entry.op_id, kind), op=op))

    def _of(self, entry: LogEntry) -> tuple[str, str, str]:
        return (*self._store.tenant[:2], entry.op_id)

    # --- reading ---------------------------------------------------------------------------------

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Whether its author signed it, or an entry that follows it in the chain."""
        mesh, chain = self._store.tenant[:2], entry.node_id
        keys = await self._store.read(_OPLOG["keys"], mesh)
        own = [Key._make(row) for row in keys if row["node_id"] == chain]
        following: list[LogEntry] = []
        seq = entry.seq - 1
        while page := await self._pages.read("page_of_chain", chain, seq, None, limit=_AT_ONCE):
            following += page
            if any(each.signature is not None for each in page):
                break
            seq = page[-1].seq
        return is_authentic(entry, following, own, mesh[0])

    async def _entries_of(self, op_id: str) -> list[LogEntry]:
        values = (*self._store.tenant[:2], _array([op_id]))
        return [LogEntry._make(row) for row in await self._store.read(_OPLOG["entries_of"], values)]

    async def _deps(self, deps: Sequence[str], *, fresh: bool = False) -> Rows:
        return await self._read("standing_of", _array(deps), fresh=fresh)

    async def _read(self, name: str, *values: Value, fresh: bool = False) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.tenant[:2], *values), fresh=fresh)


def _array(texts: Sequence[str]) -> str:
    return orjson.dumps(texts).decode()
