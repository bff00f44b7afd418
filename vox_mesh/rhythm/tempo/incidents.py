"""Incidents: an operator freezes the tempo of the mesh by hand, until the incident is cleared."""

from __future__ import annotations

from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.documents.documents import short
from vox_mesh.model.oplog.op_names import CLEAR_INCIDENT, DECLARE_INCIDENT
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.acting import current_agent
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Statement

MAX_REASON: Final = 500
"""The longest reason, in characters."""

INCIDENT_DECLARED: Final = "incident_declared"
"""Why the change of a tempo is refused."""

_SQL: Final = named("tempo_control")


class Incident(NamedTuple):
    """A declared incident. `node_id` is the node or command that declared it last."""

    reason: str
    declared_ms: int
    node_id: str
    agent_id: str | None
    op_id: str


class Incidents:
    """Declares and clears the incident of the mesh. It is stored in the database: every leader sees it."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context

    async def current(self, *, fresh: bool = True) -> Incident | None:
        """Return the declared incident, or `None`."""
        rows = await self._context.store.read(_SQL["incident"], self._context.mesh, fresh=fresh)
        return Incident._make(rows[0]) if rows else None

    async def declare(self, reason: str = "") -> Incident:
        """Declare an incident: the tempo stays until `clear`. Declared again, it gets the new reason."""
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise BadValue(
                f"incident reason must be at most {MAX_REASON} printable characters, got {short(reason)}"
            )
        context, op_id = self._context, self._context.permits.new_key()
        agent = current_agent() or context.agent
        values = (*context.mesh, reason, context.node_id, agent, op_id)
        op = Op(DECLARE_INCIDENT, canonical({"reason": reason}), signed=True)
        await context.permits.write_op(op, Statement(_SQL["declare_incident"], values), key=op_id)
        return await self._known()

    async def clear(self) -> Incident:
        """Clear the incident and return it. Raises `NotKnown` if none is declared."""
        incident = await self._known()
        payload = canonical({"declared_by": incident.op_id, "reason": incident.reason})
        statement = Statement(_SQL["clear_incident"], self._context.mesh)
        await self._context.permits.write_op(Op(CLEAR_INCIDENT, payload, signed=True), statement)
        return incident

    async def _known(self) -> Incident:
        incident = await self.current()
        if incident is None:
            raise NotKnown("no incident is declared", hint="declare one: `vox-mesh rhythm incident declare`")
        return incident

    def refuse_if_declared(self) -> Statement:
        """Return a guard that refuses the script while an incident is declared."""
        return Statement(_SQL["refuse_if_incident"], self._context.mesh, refusal=INCIDENT_DECLARED)
