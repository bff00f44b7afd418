"""Whereabouts: on which node an agent receives, and how that is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.errors import MeshError
from vox_mesh.messages.scripts import sql
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import Message
from vox_mesh.model.nodes.liveness import NodeState, state_of
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import machine_id
from vox_mesh.store.store import Store

_FRESH_S: Final = 1.0
_NOWHERE_S: Final = 0.1  # somebody may begin to receive at any moment
_ASK_S: Final = 1.0
_MAX_KNOWN: Final = 4_096


class Peer(NamedTuple):
    """A node that messages can be brought to; without an address it is this one."""

    node_id: str
    url: str | None


class AgentDirectory:
    """Finds nodes, and remembers them for a second."""

    def __init__(
        self, store: Store, clock: MeshClock, node: Callable[[], str], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._node = node
        self._monotonic = monotonic
        self._known = Recent[tuple[str, str], tuple[float, Peer | None]](_MAX_KNOWN)

    def remembered(self, receiver: str) -> tuple[bool, Peer | None]:
        """Whether it was asked just now, and what was found."""
        return self._remembered("node_of", receiver)

    async def of(self, receiver: str) -> Peer | None:
        """Where this agent, or role, receives; `None` if that is nowhere, or can't be reached."""
        return await self._find("node_of", receiver)

    async def at(self, url: str) -> Peer | None:
        """The node that has this address."""
        return await self._find("node_at", url)

    def _remembered(self, how: str, name: str) -> tuple[bool, Peer | None]:
        since, peer = self._known.get((how, name), (float("-inf"), None))
        return self._monotonic() - since < (_FRESH_S if peer is not None else _NOWHERE_S), peer

    async def is_first(self, message: Message) -> bool:
        """Whether nothing of its pair waits before it, as far as our copy of the database shows."""
        values = (*self._store.tenant[:2], message.receiver_agent, message.sender_agent, message.hlc)
        try:
            rows = await self._store.read(sql("is_first"), values, timeout=_ASK_S)
        except MeshError:
            return False
        return bool(rows.value)

    async def _find(self, how: str, name: str) -> Peer | None:
        is_fresh, peer = self._remembered(how, name)
        if is_fresh:
            return peer
        try:
            rows = await self._store.read(sql(how), (*self._store.tenant[:2], name), timeout=_ASK_S)
        except MeshError:
            # Where it was last is the best that can be known now; not every message is to wait for that.
            self._known[how, name] = self._monotonic() + _FRESH_S, peer
            return peer
        peer = self._peer(*rows[0]) if rows else None
        self._known[how, name] = self._monotonic(), peer
        return peer

    def _peer(
        self,
        node_id: str,
        control_addr: str | None,
        machine: str,
        left_ms: int | None,
        last_seen_ms: int,
        tick_ms: int,
    ) -> Peer | None:
        if node_id == self._node():
            return Peer(node_id, None)
        silent_ms = max(0, self._clock.now_ms - last_seen_ms - round(self._store.unwritable_s * 1_000))
        state = state_of(silent_ms, tick_ms, has_left=left_ms is not None)
        if control_addr is None or state in (NodeState.DEAD, NodeState.LEFT):
            return None
        if is_loopback(host_of(control_addr)) and machine != machine_id():
            return None  # that would be ourselves
        return Peer(node_id, control_addr)
