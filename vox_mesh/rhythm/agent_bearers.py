"""Bearers of agents: issued by this node for the current bar, and checked by it."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from vox_mesh.errors import NotKnown
from vox_mesh.model.principals.agent_bearer import BearerHolder, issue_bearer, read_bearer
from vox_mesh.model.rhythm.window_keys import WindowKeyFault, window_of_key
from vox_mesh.oplog.grants.known_agents import KnownAgents
from vox_mesh.rhythm.context import RhythmContext


class IssuedBearer(NamedTuple):
    """A bearer, and when it becomes stale."""

    agent: str
    bearer: str
    expires_ms: int


class AgentBearers:
    """Issues and checks bearers. Their secret is of this process alone: a restart ends all of them."""

    def __init__(self, context: RhythmContext, known: KnownAgents, node_id: str) -> None:
        self._context = context
        self._known = known
        self._node_id = node_id
        self._secret = secrets.token_hex(32)

    async def issue(self, agent: str) -> IssuedBearer:
        """Return a bearer of an agent for the current bar; if it is longer than a minute, for its part.

        Raises `NotKnown` if the agent was admitted without a public key, or not at all.
        """
        await self._known.refresh()
        key = self._known.key_of(agent)
        if key is None:
            raise NotKnown(f"agent {agent!r} was not admitted with a public key")
        context = self._context
        now_ms = context.times.now_ms
        window = window_of_key(context.timeline.window_at(now_ms), now_ms)
        holder = BearerHolder(self._node_id, key, agent)
        return IssuedBearer(agent, issue_bearer(self._secret, context.mesh, holder, window), window.end_ms)

    def read(self, text: str) -> tuple[BearerHolder | None, WindowKeyFault | None]:
        """Return the holder of a genuine bearer, and why it is refused, or `None` if it is valid.

        One is stale if its agent has been admitted with another key since, or has no grant in force.
        """
        context = self._context
        now_ms = context.times.now_ms
        holder, fault = read_bearer(self._secret, text, context.mesh, self._node_id, now_ms)
        if holder is not None and fault is None:
            is_of_agent = self._known.key_of(holder.agent) == holder.public_key
            fault = None if is_of_agent and self._known.has_grant(holder.agent) else WindowKeyFault.STALE
        return holder, fault
