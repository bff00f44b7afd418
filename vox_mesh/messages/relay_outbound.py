"""Relaying to other nodes: find the node of a receiver, and deliver messages to it in the background.

Whatever is not relayed is found in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from vox_mesh.errors import MeshError, RelayFailed, RelayRefused
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.scripts import json, sql
from vox_mesh.messages.signatures import SenderVerifier
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import UNKNOWN, Message
from vox_mesh.model.nodes.liveness import NodeState, state_of
from vox_mesh.model.nodes.node_address import NodeAddress, SignedAddress
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import machine_id
from vox_mesh.observability.log_context import detached_context
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
FIRST_PAUSE_S: Final = 0.5
_PAUSE_AFTER_FAILURE_S: Final = FIRST_PAUSE_S * 2 ** (ATTEMPTS - 1)
_MAX_QUEUED: Final = 256
_SHORT_QUEUE: Final = 4
_MAX_PAIRS: Final = 16_384
_MAX_BATCH: Final = 64
_MAX_BATCH_BYTES: Final = 512 * 1024
_FOLLOWS_S: Final = 30.0
"""How long a node is taken to follow the commits of the database, since it has said so."""

_CLAIM_PAUSE_S: Final = 0.05
"""How long such a node has for finding a stored message by itself, before it is relayed."""
_TASK_NAME: Final = "relay"


class Route(NamedTuple):
    """How a message travels: by the directory, to a given URL, or through the database alone."""

    is_relayed: bool = True
    node_url: str | None = None


Auto: Final = Route()
"""Over the relay, if the receiver's node can be reached."""

Local: Final = Route(is_relayed=False)
"""Through the database alone, where the receiver finds it."""


def Remote(node_url: str) -> Route:  # noqa: N802 - one of three routes
    """Over the relay, to the node with this URL."""
    return Route(node_url=node_url)


class RelayClient(Protocol):
    """Deliver messages to another node."""

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> bool:
        """Deliver messages; return whether the node learns of each commit at once.

        Raises `RelayFailed` if that can be retried, `RelayRefused` if it can't.
        """

    async def close(self) -> None:
        """Close all connections."""


class _RelayItem(NamedTuple):
    message: Message
    is_stored: bool
    route: Route


class _PeerQueue:
    """The queue of messages to one node, in order."""

    def __init__(self) -> None:
        self.items: deque[_RelayItem] = deque()
        self.task: asyncio.Task[None] | None = None
        self.paused_until = 0.0
        self.follows_until = float("-inf")  # until when the node is taken to follow the commits


class Outbox:
    """Relay messages in the background; senders never wait for it.

    A stored message need not be relayed: if there are many, or the other node does not answer, it is left to
    be found in the database. So it is, at first, if that node learns of each commit at once: finding it is
    cheaper for both nodes than relaying it, and no slower. A spooled message is relayed only if all earlier
    ones to the same receiver were: otherwise it would overtake them.
    """

    def __init__(
        self,
        client: RelayClient,
        directory: AgentDirectory,
        relay_buffer: RelayBuffer,
        *,
        monotonic: Callable[[], float],
        spooling: bool,
        is_busy: Callable[[], bool] = lambda: False,
        is_followed: bool = False,
        faults: BackgroundFaults | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`is_followed`: all nodes learn of each commit at once, and the database is never unreachable."""
        self._client = client
        self._directory = directory
        self._relay_buffer = relay_buffer
        self._is_followed = is_followed
        self._monotonic = monotonic
        self._is_busy = is_busy
        self._faults = BackgroundFaults(monotonic) if faults is None else faults
        self._sleep = sleep
        self._log_throttled = ThrottledLogger(_log, monotonic)
        self._queues: dict[Peer, _PeerQueue] = {}
        self._unresolved: deque[_RelayItem] = deque()
        self._resolving: asyncio.Task[None] | None = None
        self._is_gapped = spooling  # messages spooled by an earlier process were not relayed
        self._gapped: set[str] = set()  # receivers of spooled messages that were not relayed
        self._last = Recent[tuple[str, str], str](_MAX_PAIRS)  # the last message of each pair
        self.counts: Counter[str] = Counter()
        """How many messages were `brought`, `skipped`, `refused`, or `given_up`."""

    def offer(self, message: Message, *, stored: bool, route: Route = Auto) -> None:
        """Relay this message, if that is useful."""
        if stored:
            self._is_gapped = False
            self._gapped.clear()  # the spool is empty: all of it is stored
        after = self._record_last(message)
        is_found = self._is_followed and stored and route.node_url is None
        if is_found or not route.is_relayed:
            self._relay_buffer.nudge(message.receiver_agent, message.message_uuid)
            return
        message = message.with_predecessor(after)
        item = _RelayItem(message, stored, route)
        is_fresh, peer = self._directory.cached(message.receiver_agent)
        if is_fresh and route.node_url is None and message.after is not None and not self._unresolved:
            self._send_to(peer, item)
        elif len(self._unresolved) >= _MAX_QUEUED:
            self._skip(item)
        else:
            self._unresolved.append(item)
            if self._resolving is None or self._resolving.done():
                self._resolving = asyncio.create_task(
                    self._resolve(), name="vox-mesh-directory", context=detached_context()
                )

    def note_doubtful(self, message: Message) -> None:
        """Note a message that may be stored or not: the next one of its pair must not overtake it."""
        self._record_last(message)

    def _record_last(self, message: Message) -> str | None:
        """Record a message, and return the one sent before it in the same pair, if known."""
        before = self._last.get(message.addresses)
        self._last[message.addresses] = message.message_uuid
        return UNKNOWN if before == message.message_uuid else before  # the same one is sent again

    async def _resolve(self) -> None:
        while self._unresolved:
            item, peer = self._unresolved[0], None
            try:
                if item.message.after is None and not await self._directory.is_first(item.message):
                    item = item._replace(message=item.message.with_predecessor(UNKNOWN))
                peer = await self._peer_of(item)
            except Exception as error:  # the message is left to be found in the database
                self._faults.note(_TASK_NAME, error)
            self._unresolved.popleft()
            self._send_to(peer, item)

    async def _peer_of(self, item: _RelayItem) -> Peer | None:
        if item.route.node_url is None:
            return await self._directory.find_receiver(item.message.receiver_agent)
        peer = await self._directory.find_url(item.route.node_url)
        if peer is None:
            self._log_throttled(logging.WARNING, "no live node at this address: url=%s", item.route.node_url)
        return peer

    def _send_to(self, peer: Peer | None, item: _RelayItem) -> None:
        if peer is None:
            self._skip(item)
        elif peer.url is None:  # this node
            self._relay_buffer.add([item.message])
        else:
            self._enqueue(peer, item)

    def _enqueue(self, peer: Peer, item: _RelayItem) -> None:
        queue = self._queues.get(peer)
        if queue is None:
            self._drop_idle_queues()
            queue = self._queues[peer] = _PeerQueue()
        is_behind = (
            self._is_busy() or len(queue.items) >= _SHORT_QUEUE or self._monotonic() < queue.paused_until
        )
        is_needless = item.is_stored and is_behind
        if self._is_overtaking(item) or is_needless or len(queue.items) >= _MAX_QUEUED:
            self._skip(item)
            return
        queue.items.append(item)
        if queue.task is None or queue.task.done():
            queue.task = asyncio.create_task(
                self._deliver_all(peer, queue), name="vox-mesh-relay", context=detached_context()
            )

    def _drop_idle_queues(self) -> None:
        """Drop the idle queues, among them those of nodes whose address has changed."""
        now = self._monotonic()
        for peer, queue in list(self._queues.items()):
            if (queue.task is None or queue.task.done()) and now >= queue.paused_until:
                del self._queues[peer]

    def _is_overtaking(self, item: _RelayItem) -> bool:
        is_gapped = self._is_gapped or item.message.receiver_agent in self._gapped
        return is_gapped and not item.is_stored

    def _skip(self, item: _RelayItem) -> None:
        self.counts["skipped"] += 1
        self._mark_unrelayed(item)

    def _mark_unrelayed(self, item: _RelayItem) -> None:
        """Record that a message is not relayed: the next ones to the same receiver must not overtake it."""
        if not item.is_stored:
            self._gapped.add(item.message.receiver_agent)

    # --- delivering ------------------------------------------------------------------------------

    async def _deliver_all(self, peer: Peer, queue: _PeerQueue) -> None:
        while queue.items:
            batch = _next_batch(queue.items)
            try:
                if batch[0].is_stored and self._monotonic() < queue.follows_until:
                    batch = await self._unclaimed(batch)
                await self._deliver_batch(peer, batch)
            except RelayFailed as error:
                self._log_throttled(
                    logging.WARNING, "relay failed: node_id=%s error=%s", peer.node_id, error.line
                )
                self._give_up(batch, queue)

    async def _unclaimed(self, batch: list[_RelayItem]) -> list[_RelayItem]:
        """Return the messages that the node has not found by itself after a moment."""
        await self._sleep(_CLAIM_PAUSE_S)
        claimed = await self._directory.claimed([item.message.message_uuid for item in batch])
        self.counts["skipped"] += len(claimed)
        return [item for item in batch if item.message.message_uuid not in claimed]

    async def _deliver_batch(self, peer: Peer, items: Sequence[_RelayItem]) -> None:
        batch = [item for item in items if not self._is_overtaking(item)]
        for item in items:  # an earlier one was skipped meanwhile
            if item not in batch:
                self._skip(item)
        if not batch:
            return
        # Imported late: slow, and only nodes relay.
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        messages = [item.message for item in batch]
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(ATTEMPTS),
                wait=wait_exponential(multiplier=FIRST_PAUSE_S),
                retry=retry_if_exception_type(RelayFailed),
                sleep=self._sleep,
                reraise=True,
            ):
                with attempt:
                    await self._deliver(peer, messages, stored=batch[0].is_stored)
            self.counts["brought"] += len(batch)
        except RelayRefused as error:
            if len(batch) > 1:
                for item in batch:
                    await self._deliver_batch(peer, [item])
                return
            self.counts["refused"] += 1
            self._log_throttled(
                logging.ERROR,
                "relayed message refused: node_id=%s message_id=%s error=%s",
                peer.node_id,
                messages[0].message_uuid,
                error.line,
            )
            if peer in self._queues:
                self._queues[peer].paused_until = self._monotonic() + _PAUSE_AFTER_FAILURE_S
            self._mark_unrelayed(batch[0])

    async def _deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> None:
        """Deliver by the client; any exception that it does not promise counts as a failed delivery."""
        try:
            follows = await self._client.deliver(peer, messages, stored=stored)
            if follows and peer in self._queues:
                self._queues[peer].follows_until = self._monotonic() + _FOLLOWS_S
        except (RelayFailed, RelayRefused):
            raise
        except Exception as error:
            self._faults.note(_TASK_NAME, error)
            raise RelayFailed(f"unexpected {type(error).__name__}: {error}") from error

    def _give_up(self, batch: Sequence[_RelayItem], queue: _PeerQueue) -> None:
        self.counts["given_up"] += len(batch)
        queue.paused_until = self._monotonic() + _PAUSE_AFTER_FAILURE_S
        for item in (*batch, *queue.items):
            self._mark_unrelayed(item)
        queue.items.clear()

    async def close(self) -> None:
        """Stop relaying."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        if self._resolving is not None:
            tasks.append(self._resolving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()


def _next_batch(items: deque[_RelayItem]) -> list[_RelayItem]:
    """Return the next messages that travel together: all of them stored, or none."""
    batch = [items.popleft()]
    size = len(batch[0].message.payload)
    while items and len(batch) < _MAX_BATCH and items[0].is_stored is batch[0].is_stored:
        size += len(items[0].message.payload)
        if size > _MAX_BATCH_BYTES:
            break
        batch.append(items.popleft())
    return batch


# --- the directory of agents ---------------------------------------------------------------------


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
        self,
        store: Store,
        clock: MeshClock,
        verifier: SenderVerifier,
        node: Callable[[], str],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._clock = clock
        self._verifier = verifier
        self._node = node
        self._monotonic = monotonic
        self._known = Recent[tuple[str, str], tuple[float, Peer | None]](_MAX_KNOWN)
        self.token_id: str | None = None
        """The token that this node shares with nodes it can relay to."""

    def cached(self, receiver: str) -> tuple[bool, Peer | None]:
        """Return whether the cached answer for a receiver is fresh, and the answer."""
        return self._cached("node_of", receiver)

    async def find_receiver(self, receiver: str) -> Peer | None:
        """Return the node of this agent or role; `None` if there is none, or it can't be reached."""
        return await self._find("node_of", receiver)

    async def find_url(self, url: str) -> Peer | None:
        """Return the node with this URL."""
        return await self._find("node_at", url)

    async def find_node(self, node_id: str) -> Peer | None:
        """Return the node with this id; `None` if it can't be reached."""
        return await self._find("node_named", node_id)

    def _cached(self, query: str, name: str) -> tuple[bool, Peer | None]:
        since, peer = self._known.get((query, name), (float("-inf"), None))
        return self._monotonic() - since < (_CACHE_S if peer is not None else _MISS_CACHE_S), peer

    async def is_first(self, message: Message) -> bool:
        """Return whether no earlier message of its pair waits, as far as our copy of the database shows."""
        values = (*self._store.mesh_id, message.receiver_agent, message.sender_agent, message.hlc)
        try:
            rows = await self._store.read(sql("is_first"), values, timeout=_READ_TIMEOUT_S)
        except MeshError:
            return False
        return bool(rows.value)

    async def claimed(self, message_uuids: Sequence[str]) -> set[str]:
        """Return those of the messages that have ended or are claimed, as far as our copy shows."""
        values = (*self._store.mesh_id, json(message_uuids), self._clock.now_ms)
        try:
            rows = await self._store.read(sql("undeliverable"), values, timeout=_READ_TIMEOUT_S)
        except MeshError:
            return set()
        return {row[0] for row in rows}

    async def _find(self, query: str, name: str) -> Peer | None:
        is_fresh, peer = self._cached(query, name)
        if is_fresh:
            return peer
        try:
            rows = await self._store.read(sql(query), (*self._store.mesh_id, name), timeout=_READ_TIMEOUT_S)
            found = await self._peer(*rows[0]) if rows else None
        except MeshError:
            # Use the last known node, and cache that: not every message should wait for the timeout.
            self._known[query, name] = self._monotonic() + _CACHE_S, peer
            return peer
        self._known[query, name] = self._monotonic(), found
        return found

    async def _peer(
        self,
        node_id: str,
        url: str | None,
        token_id: str | None,
        machine: str | None,
        signature: str | None,
        left_ms: int | None,
        last_seen_ms: int,
        tick_ms: int,
        spare_ms: int,
    ) -> Peer | None:
        if node_id == self._node():
            return Peer(node_id, None)
        silent_ms = max(0, self._clock.now_ms - last_seen_ms - round(self._store.unwritable_s * 1_000))
        state = state_of(silent_ms, tick_ms, spare_ms, has_left=left_ms is not None)
        if url is None or token_id is None or machine is None or signature is None:
            return None
        if state in (NodeState.DEAD, NodeState.LEFT) or token_id != self.token_id:
            return None
        signed = SignedAddress(NodeAddress(node_id, url, token_id, machine), signature)
        if not await self._verifier.is_address_genuine(signed):
            return None
        if is_loopback(host_of(url)) and machine != machine_id():
            return None  # a loopback address of another machine
        return Peer(node_id, url)
