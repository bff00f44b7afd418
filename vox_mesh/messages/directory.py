"""The agent directory: which node an agent receives on, and that node's address."""

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

_CACHE_S: Final = 1.0
_MISS_CACHE_S: Final = 0.1  # a receiver may start at any moment
_READ_TIMEOUT_S: Final = 1.0
_MAX_KNOWN: Final = 4_096


class Peer(NamedTuple):
    """A node that messages can be relayed to; without a URL it is this node."""

    node_id: str
    url: str | None


class AgentDirectory:
    """Find the nodes of receivers, with a cache of one second."""

    def __init__(
        self, store: Store, clock: MeshClock, node: Callable[[], str], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._node = node
        self._monotonic = monotonic
        self._known = Recent[tuple[str, str], tuple[float, Peer | None]](_MAX_KNOWN)

    def cached(self, receiver: str) -> tuple[bool, Peer | None]:
        """Return whether the cached answer for a receiver is fresh, and the answer."""
        return self._cached("node_of", receiver)

    async def find_receiver(self, receiver: str) -> Peer | None:
        """Return the node of this agent or role; `None` if there is none, or it can't be reached."""
        return await self._find("node_of", receiver)

    async def find_url(self, url: str) -> Peer | None:
        """Return the node with this URL."""
        return await self._find("node_at", url)

    def _cached(self, query: str, name: str) -> tuple[bool, Peer | None]:
        since, peer = self._known.get((query, name), (float("-inf"), None))
        return self._monotonic() - since < (_CACHE_S if peer is not None else _MISS_CACHE_S), peer

    async def is_first(self, message: Message) -> bool:
        """Return whether no earlier message of its pair waits, as far as our copy of the database shows."""
        values = (*self._store.tenant[:2], message.receiver_agent, message.sender_agent, message.hlc)
        try:
            rows = await self._store.read(sql("is_first"), values, timeout=_READ_TIMEOUT_S)
        except MeshError:
            return False
        return bool(rows.value)

    async def _find(self, query: str, name: str) -> Peer | None:
        is_fresh, peer = self._cached(query, name)
        if is_fresh:
            return peer
        try:
            rows = await self._store.read(
                sql(query), (*self._store.tenant[:2], name), timeout=_READ_TIMEOUT_S
            )
        except MeshError:
            # Use the last known node, and cache that: not every message should wait for the timeout.
            self._known[query, name] = self._monotonic() + _CACHE_S, peer
            return peer
        peer = self._peer(*rows[0]) if rows else None
        self._known[query, name] = self._monotonic(), peer
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
            return None  # a loopback address of another machine
        return Peer(node_id, control_addr)
