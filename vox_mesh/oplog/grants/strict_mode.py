"""Strict mode: whether only admitted nodes and granted agents count, and which nodes are admitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.errors import MeshError, NotKnown, Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.keys import checked_public_key
from vox_mesh.model.messages.records import EVERYONE
from vox_mesh.model.oplog.admissions import AdmittedNode, NodeAdmissions, strict_payload
from vox_mesh.model.oplog.key_changes import ChainEnd
from vox_mesh.model.oplog.verification import ADMIT_NODE, STRICT
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.grants.op_writer import GrantOpWriter
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.sealed_verdicts import seal_script
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Statement, new_key
from vox_mesh.store.store import Store

MAX_NODES: Final = 10_000
"""The maximum number of admitted nodes. Their keys are kept as long as the mesh."""

_TOO_MANY_NODES: Final = "too_many_nodes"
_OTHER_KEY: Final = "node_has_another_key"
_STILL_WRITES: Final = "node_still_writes"
_HINTS: Final = {
    _TOO_MANY_NODES: f"at most {MAX_NODES:,} nodes can be admitted",
    _OTHER_KEY: "run `vox-mesh nodes rekey NODE --key KEY`, which replaces its key and admits it",
    _STILL_WRITES: "admit the nodes that are to stay with `vox-mesh nodes admit`, and stop the others",
}

_SQL: Final = named("grants")
_OPLOG: Final = named("oplog")
_ROLES: Final = named("roles")
_ATTEMPTS: Final = 10


class StrictMode:
    """Admit nodes, and switch the mode; only the owner may."""

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        trusted_keys: TrustedKeys,
        roles: Roles,
        permits: Permits,
        local_nodes: Callable[[], Sequence[Identity]],
    ) -> None:
        """`local_nodes` returns the nodes that the user of this process has started here."""
        self._store = store
        self._mesh = store.mesh_id
        self._trusted_keys = trusted_keys
        self._roles = roles
        self._ops = GrantOpWriter(clock, roles, permits, _HINTS)
        self._local_nodes = local_nodes

    async def admissions(self) -> NodeAdmissions:
        """Return which nodes are admitted, and whether only these count, as the owner has signed it."""
        return await self._trusted_keys.admissions()

    async def admit_node(self, node_id: str, public_key: str | None = None) -> AdmittedNode:
        """Admit a node with this key, or with the one that it presented."""
        if public_key is None:
            request = await self._roles.key_request(node_id)
            if request is None:
                raise NotKnown(
                    f"node {node_id!r} not admitted: it has not presented a key",
                    hint="start the node, or pass --key KEY",
                )
            public_key = request.public_key
        checked_public_key(public_key, hint="copy it from the line that the node ended with")
        own = (*self._mesh, node_id, public_key)
        admitted = AdmittedNode(node_id, public_key)
        await self._decide(
            *(new_key(), ADMIT_NODE, admitted.payload),
            Statement(_SQL["refuse_if_known_otherwise"], own, refusal=_OTHER_KEY),
            Statement(_SQL["refuse_if_many_nodes"], (*own[:3], MAX_NODES), refusal=_TOO_MANY_NODES),
            Statement(_SQL["admit_node"], own),
            Statement(_ROLES["forget_key_request"], own[:3]),
        )
        return admitted

    async def switch(self, *, strict: bool) -> Outcome:
        """Switch the mode. Before the mesh is strict, the nodes that this user has started are admitted.

        Running processes of nodes that are not admitted are fenced.
        """
        if not strict:
            trust = Statement(_SQL["set_trusting"], self._mesh)
            return await self._decide(new_key(), STRICT, canonical({"strict": False}), trust)
        await self._admit_local_nodes()
        for attempt in range(_ATTEMPTS):
            ends = await self._ends_of_unadmitted()
            op_id = new_key()
            try:
                return await self._decide(
                    *(op_id, STRICT, strict_payload(ends)),
                    Statement(
                        _ROLES["refuse_unless_chains_end"],
                        (*self._mesh, canonical({chain: [*end] for chain, end in ends.items()})),
                        refusal=_STILL_WRITES,
                    ),
                    Statement(_SQL["admit"], (*self._mesh, EVERYONE, None, op_id)),
                    Statement(_SQL["fence_unadmitted"], self._mesh),
                )
            except Refused as refused:
                if refused.reason != _STILL_WRITES or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError  # the last attempt returns or raises

    async def _admit_local_nodes(self) -> None:
        known = await self.admissions()
        for each in self._local_nodes():
            if not known.has_admitted_by_op(each.node_id, [each.key.public]):
                await self.admit_node(each.node_id, each.key.public)

    async def _ends_of_unadmitted(self) -> dict[str, ChainEnd]:
        """Return where the chains end of nodes that are not admitted."""
        rows = await self._store.read(_OPLOG["heads"], self._mesh, fresh=True)
        return {
            row["node_id"]: ChainEnd(row["seq"], row["hash"])
            for row in rows
            if not await self._trusted_keys.is_admitted(row["node_id"])
        }

    async def _decide(self, op_id: str, kind: str, payload: str, *statements: Statement) -> Outcome:
        try:
            return await self._ops.write(op_id, kind, payload, *statements)
        except Refused:  # it counts until a seal says that it was refused
            with suppress(MeshError):
                await self._store.write(seal_script())
            raise
