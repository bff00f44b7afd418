"""Roles: the owner of the mesh, the coordinator it designated, and the routes it set.

What the owner said is read from the log and believed only if its key signed it; a row that merely looks
right changes nothing. The latest by its hybrid time is in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.coordination.author import Author
from vox_mesh.coordination.clock import MeshClock
from vox_mesh.coordination.identity import COMMANDS
from vox_mesh.coordination.kinds import INITIALISE, OpKind
from vox_mesh.coordination.nodes import Node, Nodes
from vox_mesh.errors import NotKnown
from vox_mesh.model.canonical import canonical, parse
from vox_mesh.model.chain import Entry
from vox_mesh.model.liveness import State
from vox_mesh.model.verification import DESIGNATE, REKEY, ROUTE, Witness
from vox_mesh.store.script import Op, Outcome, Script, Statement, new_key
from vox_mesh.store.statements import named
from vox_mesh.store.store import Store
from vox_mesh.store.values import Rows, Value

_SQL: Final = named("roles")
_OPLOG: Final = named("oplog")


class Owner(NamedTuple):
    """The owner of the mesh."""

    node_id: str
    public_key: str
    op_id: str


class Coordinator(NamedTuple):
    """Who is designated, by which op, and what is known of that node."""

    node_id: str
    hlc: str
    op_id: str
    node: Node | None

    @property
    def is_drifting(self) -> bool:
        """Whether it has been silent for so long that the owner should know."""
        return self.node is None or self.node.state in (State.DEAD, State.LEFT)


class Roles:
    """Reads and writes who may do what."""

    def __init__(self, store: Store, author: Author, nodes: Nodes, clock: MeshClock) -> None:
        self._store = store
        self._author = author
        self._nodes = nodes
        self._clock = clock

    async def owner(self) -> Owner | None:
        """The owner, or nobody as long as no node has initialised the mesh."""
        rows = await self._read("owner")
        return Owner._make(rows[0]) if rows else None

    async def initialise(self) -> Outcome:
        """Become the owner of a mesh that has none."""
        self._clock.refuse_if_off()
        author, op_id = self._author.identity, new_key()
        own = (author.node_id, author.key.public, op_id)
        free = Statement(_SQL["refuse_if_owned"], self._store.tenant[:2], refusal="mesh_has_an_owner")
        op = Op(INITIALISE, canonical({"key": author.key.public, "node": author.node_id}), signed=True)
        take = Statement(_SQL["own"], (*self._store.tenant[:2], *own))
        return await self._store.write(Script(free, take, key=op_id, op=op))

    # --- what follows for others -----------------------------------------------------------------

    async def guards(self, kind: OpKind) -> Sequence[Statement]:
        """The guards that an op of this kind must pass, by whoever we are."""
        guards: list[Statement] = []
        if kind.owner_only:
            guards.append(self._owner_guard())
        if kind.derivation:
            guards.append(await self._coordinator_guard())
        return guards

    def refusal(self, reason: str) -> Statement:
        """A guard that nothing passes."""
        return Statement(_SQL["refuse"], refusal=reason)

    def _owner_guard(self) -> Statement:
        own_key = self._author.identity.key.public
        return Statement(
            _SQL["refuse_unless_owner"], (*self._store.tenant[:2], own_key), refusal="not_the_owner"
        )

    async def _coordinator_guard(self) -> Statement:
        in_force, forged = await self._in_force(DESIGNATE)
        entry = next(iter(in_force), None)
        if entry is None or parse(entry.payload)["node"] != self._author.identity.node_id:
            return self.refusal("not_the_coordinator")
        values = (*self._store.tenant[:2], entry.hlc, orjson.dumps(forged).decode())
        return Statement(_SQL["refuse_if_designated_after"], values, refusal="not_the_coordinator")

    # --- what the owner says ---------------------------------------------------------------------

    async def coordinator(self) -> Coordinator | None:
        """Who is designated now."""
        in_force, _ = await self._in_force(DESIGNATE)
        if not in_force:
            return None
        node_id = parse(in_force[0].payload)["node"]
        return Coordinator(node_id, in_force[0].hlc, in_force[0].op_id, await self._nodes.find(node_id))

    async def designate_coordinator(self, node_id: str) -> Outcome:
        """Make a node the coordinator; only the owner may."""
        if await self._nodes.find(node_id) is None:
            raise NotKnown(f"no node {node_id!r} was ever here", hint="see `vox-mesh nodes --all`")
        return await self._say(DESIGNATE, {"node": node_id})

    async def routes(self) -> dict[str, str]:
        """Which kinds of job go to which node only."""
        in_force, _ = await self._in_force(ROUTE)
        routes: dict[str, str | None] = {}
        for entry in in_force:
            payload = parse(entry.payload)
            routes.setdefault(payload["kind"], payload["node"])
        return {kind: node_id for kind, node_id in sorted(routes.items()) if node_id is not None}

    async def route_kind(self, kind: str, node_id: str | None) -> Outcome:
        """Have jobs of a kind go to one node, or (`None`) to any; only the owner may."""
        return await self._say(ROUTE, {"kind": kind, "node": node_id})

    async def rekey(self, node_id: str, public_key: str | None = None) -> tuple[str, Outcome]:
        """Accept a new key for a known node: this one, or the one it came with; only the owner may."""
        if public_key is None:
            asked = await self._read("key_request", node_id)
            if not asked:
                raise NotKnown(
                    f"{node_id} has not come with another key",
                    hint="start it with its new key, or name the key with --key",
                )
            public_key = str(asked[0]["public_key"])
        rows = await self._read("chains_of", node_id, node_id + COMMANDS)
        if not rows:
            raise NotKnown(f"no key of {node_id!r} is known yet", hint="see `vox-mesh nodes --all`")
        since = {row["node_id"]: row["seq"] + 1 for row in rows}
        tenant, places = self._store.tenant[:2], canonical(since)
        effects = (
            Statement(_SQL["refuse_unless_chains_at"], (*tenant, places), refusal="node_still_writes"),
            Statement(_SQL["accept_key"], (*tenant, places, public_key)),
            Statement(_SQL["forget_key_request"], (*tenant, node_id)),
        )
        payload = {"node": node_id, "key": public_key, "from": since}
        return public_key, await self._say(REKEY, payload, *effects)

    async def _say(self, kind: str, payload: dict[str, Any], *effects: Statement) -> Outcome:
        self._clock.refuse_if_off()
        op = Op(kind, canonical(payload), signed=True)
        return await self._store.write(Script(self._owner_guard(), *effects, op=op))

    async def _in_force(self, kind: str) -> tuple[list[Entry], list[str]]:
        """What the owner said of this kind, latest first; and the ids of what others pretend it said."""
        owner = await self.owner()
        witness = Witness(None if owner is None else owner.public_key, ())
        rows = await self._store.read(_OPLOG["of_kind"], (*self._store.tenant[:2], kind))
        said: list[Entry] = []
        forged: list[str] = []
        for row in rows:
            entry = Entry._make(row)
            if witness.is_of_owner(entry):
                said.append(entry)
            else:
                forged.append(entry.op_id)
        return said, forged

    async def _read(self, name: str, *values: Value) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.tenant[:2], *values), fresh=True)
