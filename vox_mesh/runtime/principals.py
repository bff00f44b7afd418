"""Principals: the agents that can prove who they are to this node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.agent_tokens import AgentTokens
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.known_agents import KnownAgents
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.agent_bearers import AgentBearers
from vox_mesh.rhythm.rhythm import Rhythm
from vox_mesh.store.store import Store


class Principals:
    """What this process knows about admitted agents, and the bearers that it issues to them."""

    def __init__(
        self,
        store: Store,
        roles: Roles,
        ownership: Ownership,
        log: GrantLog,
        permits: Permits,
        writer: OpLogWriter,
        clock: MeshClock,
        rhythm: Callable[[], Rhythm],
        monotonic: Callable[[], float],
    ) -> None:
        self._writer = writer
        self.tokens = AgentTokens(store, permits, clock, roles, ownership, monotonic)
        """The tokens of agents."""
        self._rhythm = rhythm
        self.known = KnownAgents(log, clock, monotonic)
        """The admitted agents and their grants, as remembered for up to a second."""

    @cached_property
    def bearers(self) -> AgentBearers:
        """Return the bearers of agents."""
        return AgentBearers(self._rhythm().context, self.known, self._writer.identity.node_id)
