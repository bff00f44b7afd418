"""Roles: the owner of the mesh, the coordinator it designated, and the routes it set.

The owner's decisions are read from the log and accepted only if signed with the owner's key; rows that were
merely written to a table have no effect. The latest by hybrid time is in force.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import MeshError, NotKnown, Refused
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import checked_public_key
from vox_mesh.model.jobs.records import check_pattern
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.oplog.authorship import Owner, initialisation
from vox_mesh.model.oplog.chain import COMMANDS, LogEntry
from vox_mesh.model.oplog.key_changes import MAX_MAIL, NO_ENTRIES, ChainEnd, change_payload
from vox_mesh.model.oplog.verification import (
    DESIGNATE,
    INITIALISE,
    REKEY,
    ROUTE,
    TRUST_SCOPE,
    ChainWitness,
    Key,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Node, Nodes
from vox_mesh.oplog.archive.deletion_ops import DeletionOps
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.sealed_verdicts import seal_script
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("roles")
_NODES: Final = named("nodes")
_GRANTS: Final = named("grants")
_NOT_OWNER: Final = "not_the_owner"
_OWNER_KEEPS_KEY: Final = "the_owner_keeps_its_key"


class KeyRequest(NamedTuple):
    """A new key that a node presented, though it is known with another."""

    public_key: str
    host: str
    pid: int
    requested_ms: int


@dataclass(frozen=True)
class AcceptedKey:
    """A new key of a node, accepted by this op; `host` and `pid` are of the process that presented it."""

    node_id: str
    public_key: str
    host: str | None
    pid: int | None
    op_id: str


class OwnerDecision(NamedTuple):
    """One decision of the owner."""

    hlc: str
    op_id: str
    payload: Any


class Routing(NamedTuple):
    """The nodes that kinds of job are routed to, and all ops about routes, including invalid ones."""

    routes: dict[str, str]
    ops: tuple[str, ...]
    text: str
    """Both as JSON, for the statements that claim jobs."""

    @classmethod
    def of(cls, routes: dict[str, str], ops: Sequence[str]) -> Routing:
        """Return these routes."""
        text = orjson.dumps({"routes": list(routes.items()), "ops": list(ops)}).decode()
        return cls(routes, tuple(ops), text)


NO_ROUTES: Final = Routing.of({}, ())


class TrustedScopes(NamedTuple):
    """The scopes that may send messages here, with the keys of their owners, and the last op about any."""

    keys: dict[str, str]
    mark: str | None


class Coordinator(NamedTuple):
    """The designated node, the op that designated it, and the node's state if known."""

    node_id: str
    hlc: str
    op_id: str
    node: Node | None

    @property
    def is_drifting(self) -> bool:
        """Return whether it has been silent for so long that the owner should know."""
        return self.node is None or self.node.state in (NodeState.DEAD, NodeState.LEFT)


class Roles:
    """Read and write the owner's decisions."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        nodes: Nodes,
        clock: MeshClock,
        ownership: Ownership,
        permits: Permits,
    ) -> None:
        self._permits = permits
        self._store = store
        self._ownership = ownership
        self._writer = writer
        self._nodes = nodes
        self._pages = Pages(store)
        self._clock = clock
        self.deletions = DeletionOps(store, ownership)

    async def owner(self) -> Owner | None:
        """Return the owner, or `None` until a node has initialised the mesh."""
        return await self._ownership.owner()

    async def witness(self, keys: Sequence[Key] = ()) -> ChainWitness:
        """Return a witness that knows the owners, and the owner that the table `mesh_owner` names."""
        recorded = await self._ownership.recorded()
        return await self._ownership.witness(keys, "" if recorded is None else recorded.public_key)

    async def initialise(self, recovery_key: str | None = None) -> Outcome:
        """Become the owner of a mesh that has none; `recovery_key` is the public one."""
        self._clock.refuse_if_off()
        author, op_id = self._writer.identity, new_key()
        own = (author.node_id, author.key.public, op_id)
        recorded = await self._ownership.recorded()  # before the log is read: a true one is in there
        is_baseless = recorded is not None and await self.owner() is None
        values = (*self._store.mesh_id, recorded.op_id if recorded and is_baseless else None)
        free = Statement(_SQL["refuse_if_owned"], values, refusal="mesh_has_an_owner")
        op = Op(INITIALISE, initialisation(author.node_id, author.key.public, recovery_key), signed=True)
        take = Statement(_SQL["become_owner"], (*self._store.mesh_id, *own))
        return await self._store.write(Script(free, take, key=op_id, op=op))

    # --- guards ----------------------------------------------------------------------------------

    async def guards(self, kind: OpKind) -> Sequence[Statement]:
        """Return the guards that an op of this kind must pass when this process authors it."""
        guards: list[Statement] = []
        if kind.owner_only:
            guards += await self._owner_guards()
        if kind.derivation:
            guards.append(await self._coordinator_guard())
        return guards

    def refusal(self, reason: str) -> Statement:
        """Return a guard that refuses every script."""
        return Statement(_SQL["refuse"], refusal=reason)

    async def _owner_guards(self) -> Sequence[Statement]:
        """Return a refusal unless this process is the owner, by its key."""
        author = self._writer.identity
        may_act = await self._ownership.may_act(author.chain, author.key.public)
        return () if may_act else (self.refusal(_NOT_OWNER),)

    async def _coordinator_guard(self) -> Statement:
        decisions, invalid = await self._decisions(DESIGNATE)
        if not decisions or decisions[0].payload["node"] != self._writer.identity.node_id:
            return self.refusal("not_the_coordinator")
        values = (*self._store.mesh_id, decisions[0].hlc, orjson.dumps(invalid).decode())
        return Statement(_SQL["refuse_if_designated_after"], values, refusal="not_the_coordinator")

    # --- the owner's decisions -------------------------------------------------------------------

    async def coordinator(self) -> Coordinator | None:
        """Return the designated coordinator."""
        decisions, _ = await self._decisions(DESIGNATE)
        if not decisions:
            return None
        hlc, op_id, payload = decisions[0]
        return Coordinator(payload["node"], hlc, op_id, await self._nodes.find(payload["node"]))

    async def designate_coordinator(self, node_id: str) -> Outcome:
        """Make a node the coordinator; only the owner may."""
        await self._nodes.require(node_id)
        return await self._record_decision(DESIGNATE, {"node": node_id})

    async def routes(self) -> dict[str, str]:
        """Return the nodes that kinds of job are routed to."""
        return (await self.routing()).routes

    async def routing(self) -> Routing:
        """Return the routes in force, and the ops that they were read from."""
        decisions, invalid = await self._decisions(ROUTE)
        latest: dict[str, str | None] = {}
        for each in decisions:
            latest.setdefault(each.payload["kind"], each.payload["node"])
        routes = {kind: node_id for kind, node_id in sorted(latest.items()) if node_id is not None}
        return Routing.of(routes, [*(each.op_id for each in decisions), *invalid])

    async def route_kind(self, kind: str, node_id: str | None) -> Outcome:
        """Route jobs of a kind, or of a pattern, to one node, or (`None`) to any; only the owner may."""
        check_pattern(kind)
        return await self._record_decision(ROUTE, {"kind": kind, "node": node_id})

    async def set_route(self, kind: str, node_id: str) -> Outcome:
        """Route jobs of a kind to a node that is known; only the owner may."""
        await self._nodes.require(node_id)
        return await self.route_kind(kind, node_id)

    async def clear_route(self, kind: str) -> Outcome:
        """Remove the route of a kind; only the owner may."""
        if kind not in await self.routes():
            raise NotKnown(
                f"route of {kind} not found: no owner's decision sets it",
                hint="run `vox-mesh route list` to see all routes",
            )
        return await self.route_kind(kind, None)

    async def trusted_scopes(self) -> TrustedScopes:
        """Return the scopes that may send messages here."""
        entries = [entry async for entry in self._pages.of_kind(TRUST_SCOPE, fresh=True)]
        decisions, _ = await self._valid_decisions(TRUST_SCOPE, entries)
        latest: dict[str, str | None] = {}
        for each in decisions:
            latest.setdefault(each.payload["scope"], each.payload["owner_key"])
        keys = {scope: key for scope, key in sorted(latest.items()) if key is not None}
        return TrustedScopes(keys, entries[-1].op_id if entries else None)

    async def trust_scope(self, scope: str, owner_key: str | None) -> Outcome:
        """Let a scope with this owner send messages here, or (`None`) no more; only the owner may."""
        if owner_key is not None:
            checked_public_key(owner_key, hint="copy it from the owner of that scope")
        elif scope not in (await self.trusted_scopes()).keys:
            raise NotKnown(
                f"trust in scope {scope!r} not found: it may not send messages here",
                hint="run `vox-mesh scopes trusted` to see all",
            )
        return await self._record_decision(TRUST_SCOPE, {"scope": scope, "owner_key": owner_key})

    async def key_request(self, node_id: str) -> KeyRequest | None:
        """Return the new key that a known node presented last."""
        rows = await self._read("key_request", node_id)
        return KeyRequest._make(rows[0]) if rows else None

    async def rekey(self, node_id: str, public_key: str | None = None) -> tuple[str, Outcome]:
        """Accept a new key for a known node: this one, or the one it presented; only the owner may."""
        if public_key is None:
            asked = await self.key_request(node_id)
            if asked is None:
                raise NotKnown(
                    f"key of {node_id} not replaced: it has not presented another key",
                    hint="start it with its new key, or pass --key KEY",
                )
            public_key = asked.public_key
        checked_public_key(public_key, hint="copy it from the refusal that the node logged")
        mail, last_sent = await self._deliverable_mail(node_id)
        ends = await self._chain_ends(node_id)
        mesh = self._store.mesh_id
        still_writes = "node_still_writes"
        payload = change_payload(node_id, public_key, ends, mail)
        recorded = canonical({chain: [*end] for chain, end in ends.items()})
        effects = (
            *await self._refuse_owner(node_id),
            Statement(_SQL["refuse_unless_chains_end"], (*mesh, recorded), refusal=still_writes),
            Statement(_SQL["refuse_if_sent_after"], (*mesh, node_id, last_sent), refusal=still_writes),
            Statement(_SQL["accept_key"], (*mesh, canonical(payload["from"]), public_key)),
            Statement(_GRANTS["admit_node"], (*mesh, node_id, public_key)),
            # A process that still has the old key is fenced.
            Statement(_NODES["raise_incarnation"], (*mesh, node_id)),
            Statement(_SQL["forget_key_request"], (*mesh, node_id)),
        )
        return public_key, await self._record_decision(REKEY, payload, *effects)

    async def _chain_ends(self, node_id: str) -> dict[str, ChainEnd]:
        """Return where the chains of a node end; raise `NotKnown` if it has no key."""
        chains = (node_id, node_id + COMMANDS)
        deleted = await self.deletions.deleted()
        spans = [[chain, *span] for chain in chains for span in deleted.spans(chain)]
        rows = await self._read("chains_of", *chains, orjson.dumps(spans).decode())
        if not rows[0]["is_known"]:
            raise NotKnown(
                f"key of {node_id!r} not found: it has written nothing yet",
                hint="run `vox-mesh nodes --all` to see all nodes",
            )
        return {
            row["node_id"]: ChainEnd(row["seq"], row["hash"]) if row["seq"] else NO_ENTRIES for row in rows
        }

    async def _deliverable_mail(self, node_id: str) -> tuple[list[str], int]:
        """Return the signatures of messages of a node that can still be delivered, and the last message's id.

        The oldest ones, if there are too many.
        """
        rows = await self._read("mail_of", node_id, MAX_MAIL)
        if len(rows) == MAX_MAIL:
            _log.warning("messages beyond the first %d are not kept: node_id=%s", MAX_MAIL, node_id)
        kept = [row["signature"].decode(errors="replace") for row in rows if row["signature"] is not None]
        return kept, rows[0]["last_id"]

    async def _refuse_owner(self, node_id: str) -> Sequence[Statement]:
        """Return a refusal for the owner, whose ops are believed by its key."""
        owner = await self.owner()
        is_owner = owner is not None and owner.node_id == node_id
        return (self.refusal(_OWNER_KEEPS_KEY),) if is_owner else ()

    async def accept_key(self, node_id: str, public_key: str | None = None) -> AcceptedKey:
        """Accept a new key as `rekey` does, and return it with the process that presented it."""
        request = await self.key_request(node_id)
        asked = None if request is None else request.public_key
        accepted, op = await self.rekey(node_id, public_key or asked)
        host, pid = (request.host, request.pid) if request is not None and accepted == asked else (None, None)
        return AcceptedKey(node_id=node_id, public_key=accepted, host=host, pid=pid, op_id=op.key)

    async def _record_decision(self, kind: str, payload: dict[str, Any], *effects: Statement) -> Outcome:
        self._clock.refuse_if_off()
        await self._decisions(kind)  # so that this is later than earlier decisions
        op = Op(kind, canonical(payload), signed=True)
        try:
            return await self._permits.write_op(op, *await self._owner_guards(), *effects)
        except Refused as refused:
            refused.hint = await self._hint_for(refused)
            if (
                kind == REKEY and refused.reason != _NOT_OWNER
            ):  # it counts until a seal says that it was refused
                with suppress(MeshError):
                    await self._store.write(seal_script())
            raise

    async def _hint_for(self, refused: Refused) -> str:
        if refused.reason == _OWNER_KEEPS_KEY:
            return "put the owner's key.pem back: its key is what the mesh knows it by"
        if refused.reason != _NOT_OWNER:
            return "stop that node first"
        owner = await self.owner()
        if owner is None:
            return "start a node: the first one becomes the owner of the mesh"
        if await self._ownership.key() is None:
            return "two nodes claim to succeed the owner: set VOX_MESH_OWNER_KEY to the key of the right one"
        return f"the owner of the mesh is {owner.node_id}: run this there, with its key"

    async def _decisions(self, kind: str) -> tuple[list[OwnerDecision], list[str]]:
        """Return the owner's decisions of this kind, latest first, and the ids of invalid ones."""
        return await self._valid_decisions(
            kind, [entry async for entry in self._pages.of_kind(kind, fresh=True)]
        )

    async def _valid_decisions(
        self, kind: str, entries: Sequence[LogEntry]
    ) -> tuple[list[OwnerDecision], list[str]]:
        witness = await self._ownership.witness()  # after them: it knows the owners who signed them
        decisions: list[OwnerDecision] = []
        invalid: list[str] = []
        for entry in entries:
            payload = parse(entry.payload) if witness.is_of_owner(entry) else None
            if _is_clear(kind, payload):
                decisions.insert(0, OwnerDecision(entry.hlc, entry.op_id, payload))
            else:
                invalid.append(entry.op_id)
        if decisions:
            self._clock.receive(decisions[0].hlc)
        return decisions, invalid

    async def _read(self, name: str, *values: Value) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.mesh_id, *values), fresh=True)


def _is_clear(kind: str, payload: Any) -> bool:
    if kind == TRUST_SCOPE:
        return (
            isinstance(payload, dict)
            and isinstance(payload.get("scope"), str)
            and isinstance(payload.get("owner_key", 0), str | None)
        )
    if not isinstance(payload, dict) or "node" not in payload:
        return False
    if kind == ROUTE:
        return isinstance(payload.get("kind"), str) and isinstance(payload["node"], str | None)
    return isinstance(payload["node"], str)
