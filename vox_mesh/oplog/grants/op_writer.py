"""Writes ops about agents, nodes and grants: signed, by the role and the grant that each needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vox_mesh.errors import Refused
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.oplog.roles import Roles
from vox_mesh.store.script import Op, Outcome, Statement

_HINTS: Final = {
    "not_the_owner": "run this in the home of the owner's node, which `vox-mesh roles show` names; the first"
    " node that runs (`vox-mesh up`) is the owner",
}


class GrantOpWriter:
    """Write such ops for the acting agent."""

    def __init__(self, clock: MeshClock, roles: Roles, permits: Permits, hints: Mapping[str, str]) -> None:
        """`hints`: what to do after a refusal, by its reason."""
        self._clock = clock
        self._roles = roles
        self._permits = permits
        self._hints = {**_HINTS, **hints}

    async def write(self, op_id: str, kind: str, payload: str, *statements: Statement) -> Outcome:
        """Write an op and its effects, as `Permits.write_op` does."""
        self._clock.refuse_if_off()
        guards = await self._roles.guards(OpKind(kind))
        try:
            op = Op(kind, payload, signed=True)
            return await self._permits.write_op(op, *guards, *statements, key=op_id)
        except Refused as refused:
            refused.hint = self._hints.get(refused.reason, refused.hint)
            raise
