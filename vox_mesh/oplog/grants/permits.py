"""Permits: by which grant an agent acts, and the guard that checks it in the transaction of the write.

What a grant allows never changes, so it is decided here, by the signed ops of the log. Whether the grant is
in force may change at any time, so the database decides it when the write is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from vox_mesh.errors import DatabaseUnavailable, NotGranted
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

if TYPE_CHECKING:  # most meshes have no grants
    from vox_mesh.model.grants.capability import Act
    from vox_mesh.oplog.grants.grant_log import GrantLog

_SQL: Final = named("grants")
_REUSE_S: Final = 1.0
_MAX_KNOWN: Final = 10_000


class Permit(NamedTuple):
    """An agent that acts through a node, by a grant or without one."""

    agent: str
    node_id: str
    grant_id: str | None


class Permits:
    """Find the grants by which the agents of one process act."""

    def __init__(
        self,
        store: Store,
        log: Callable[[], GrantLog],
        clock: MeshClock,
        writer: OpLogWriter,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._writer = writer
        self._monotonic = monotonic
        self._need_grants: set[str] = set()
        self._are_in_use = False
        self._looked_at: float | None = None

    def is_known_to_need_grants(self, agent: str) -> bool:
        """Return whether this process has found that an agent needs a grant; nothing is read."""
        return agent in self._need_grants

    def expect_grants(self, agent: str) -> None:
        """Look for a grant of an agent from now on: without one it was refused."""
        if len(self._need_grants) < _MAX_KNOWN:
            self._need_grants.add(agent)

    async def grant_for(self, agent: str, acts: Sequence[Act]) -> str | None:
        """Return the grant by which an agent may do all of these acts, or `None` if it needs none.

        Raises:
            NotGranted: It needs a grant, and has none that allows them without approval.
        """
        history = await self._log().history()
        if not history.needs_grant(agent, self._writer.identity.chain):
            self._need_grants.discard(agent)
            return None
        self.expect_grants(agent)
        found = history.grant_for(agent, acts, self._clock.now_ms)
        if found is None:
            wanted = ", ".join(f"`{act}`" for act in acts[:3])
            error = NotGranted(NotGranted.code, statement=0)
            error.hint = f"ask the owner for a grant for {agent} that allows {wanted}"
            raise error
        return found.grant_id

    async def permit(self, agent: str, acts: Callable[[], Sequence[Act]]) -> Permit:
        """Return the permit of an agent for acts; they are worked out only if grants are in use.

        While the database is unreachable, none is looked for: the guard decides when it is back.
        """
        needs_grant = agent in self._need_grants or await self._is_in_use()
        grant_id = await self.grant_for(agent, acts()) if needs_grant else None
        return Permit(agent, self._writer.identity.node_id, grant_id)

    async def _is_in_use(self) -> bool:
        """Return whether agents were admitted, or the mesh is strict, as known for up to a second."""
        now = self._monotonic()
        if self._looked_at is None or now >= self._looked_at + _REUSE_S:
            try:
                rows = await self._store.read(_SQL["is_in_use"], self._store.mesh_id)
            except DatabaseUnavailable:
                return False
            self._are_in_use, self._looked_at = bool(rows.value), now
        return self._are_in_use

    def guard(self, permit: Permit) -> Statement:
        """Return the guard for a script that is written by a permit."""
        return grant_guard(self._store.mesh_id, *permit)


def grant_guard(mesh: tuple[str, str], agent: str, node_id: str, grant_id: str | None) -> Statement:
    """Return a guard that raises `NotGranted` unless an agent may act, by a grant or without one."""
    values = (*mesh, agent, node_id, grant_id)
    return Statement(_SQL["refuse_without_grant"], values, refusal=NotGranted.code)
