"""The outbox: brings messages to the nodes of their receivers. What it can't bring is found all the same."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from vox_mesh.errors import RelayFailed, RelayRefused
from vox_mesh.messages.directory import AgentDirectory, Peer
from vox_mesh.messages.log_throttle import ThrottledLogger
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import UNKNOWN, Message
from vox_mesh.observability.log_context import apart
from vox_mesh.store.background import BackgroundFaults

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
FIRST_PAUSE_S: Final = 0.5
_REST_S: Final = FIRST_PAUSE_S * 2 ** (ATTEMPTS - 1)
_MAX_QUEUED: Final = 256
_FEW: Final = 4
_MAX_PAIRS: Final = 16_384
_MAX_AT_ONCE: Final = 64
_MAX_BYTES_AT_ONCE: Final = 512 * 1024
_TASK: Final = "relay"


class Route(NamedTuple):
    """How a message goes: by what is known of its receiver, to an address, or nowhere but to the database."""

    is_relayed: bool = True
    node_url: str | None = None


Auto: Final = Route()
"""Over the relay, if its receiver's node can be reached."""

Local: Final = Route(is_relayed=False)
"""Into the database alone: whoever receives finds it there."""


def Remote(node_url: str) -> Route:  # noqa: N802 - one of three routes
    """Over the relay, to the node that has this address."""
    return Route(node_url=node_url)


class RelayClient(Protocol):
    """How messages get to another node."""

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> None:
        """Bring them; raise `RelayFailed` if it can be tried again, `RelayRefused` if it can't."""

    async def close(self) -> None:
        """Let go of all connections."""


class _Parcel(NamedTuple):
    message: Message
    is_stored: bool
    route: Route


class _Lane:
    """What waits to be brought to one node, in order."""

    def __init__(self) -> None:
        self.parcels: deque[_Parcel] = deque()
        self.task: asyncio.Task[None] | None = None
        self.rests_until = 0.0


class Outbox:
    """Brings messages in the background; nobody ever waits for it.

    A message that is stored need not be brought: when there are many, or the other node does not answer, it
    is left to be found. One that waits in the spool is brought only if all before it to the same receiver
    were: otherwise it would overtake them.
    """

    def __init__(
        self,
        courier: RelayClient,
        whereabouts: AgentDirectory,
        arrivals: RelayBuffer,
        *,
        monotonic: Callable[[], float],
        spooling: bool,
        is_busy: Callable[[], bool] = lambda: False,
        faults: BackgroundFaults | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._courier = courier
        self._whereabouts = whereabouts
        self._arrivals = arrivals
        self._monotonic = monotonic
        self._is_busy = is_busy
        self._faults = BackgroundFaults(monotonic) if faults is None else faults
        self._sleep = sleep
        self._say = ThrottledLogger(_log, monotonic)
        self._lanes: dict[Peer, _Lane] = {}
        self._unresolved: deque[_Parcel] = deque()
        self._resolving: asyncio.Task[None] | None = None
        self._is_gapped = spooling  # what was left by an earlier process was not brought
        self._gapped: set[str] = set()  # receivers of messages in the spool that were not brought
        self._last = Recent[tuple[str, str], str](_MAX_PAIRS)  # of each pair, what was sent last
        self.counts: Counter[str] = Counter()
        """How many messages were `brought`, `skipped`, `refused`, or `given_up`."""

    def offer(self, message: Message, *, stored: bool, route: Route = Auto) -> None:
        """Bring this message, if that is of any use."""
        if stored:
            self._is_gapped = False
            self._gapped.clear()  # the spool is empty: all that had waited in it is stored
        message = message._replace(after=self._note(message))
        if not route.is_relayed:
            self._arrivals.nudge(message.receiver_agent, message.message_uuid)
            return
        parcel = _Parcel(message, stored, route)
        is_fresh, peer = self._whereabouts.remembered(message.receiver_agent)
        if is_fresh and route.node_url is None and message.after is not None and not self._unresolved:
            self._send_to(peer, parcel)
        elif len(self._unresolved) >= _MAX_QUEUED:
            self._skip(parcel)
        else:
            self._unresolved.append(parcel)
            if self._resolving is None or self._resolving.done():
                self._resolving = asyncio.create_task(
                    self._resolve(), name="vox-mesh-whereabouts", context=apart()
                )

    def _note(self, message: Message) -> str | None:
        """What was sent before it in the same pair, as far as this process knows."""
        before = self._last.get(message.pair)
        self._last[message.pair] = message.message_uuid
        return UNKNOWN if before == message.message_uuid else before  # the same: it is sent once more

    async def _resolve(self) -> None:
        while self._unresolved:
            parcel, peer = self._unresolved[0], None
            try:
                if parcel.message.after is None and not await self._whereabouts.is_first(parcel.message):
                    parcel = parcel._replace(message=parcel.message._replace(after=UNKNOWN))
                peer = await self._peer_of(parcel)
            except Exception as error:  # the message is left to be found, and the next one has its turn
                self._faults.note(_TASK, error)
            self._unresolved.popleft()
            self._send_to(peer, parcel)

    async def _peer_of(self, parcel: _Parcel) -> Peer | None:
        if parcel.route.node_url is None:
            return await self._whereabouts.of(parcel.message.receiver_agent)
        peer = await self._whereabouts.at(parcel.route.node_url)
        if peer is None:
            self._say(logging.WARNING, "no live node has the address %s", parcel.route.node_url)
        return peer

    def _send_to(self, peer: Peer | None, parcel: _Parcel) -> None:
        if peer is None:
            self._skip(parcel)
        elif peer.url is None:  # here
            self._arrivals.bring([parcel.message])
        else:
            self._queue(peer, parcel)

    def _queue(self, peer: Peer, parcel: _Parcel) -> None:
        lane = self._lanes.get(peer)
        if lane is None:
            self._forget_idle_lanes()
            lane = self._lanes[peer] = _Lane()
        is_behind = self._is_busy() or len(lane.parcels) >= _FEW or self._monotonic() < lane.rests_until
        is_needless = parcel.is_stored and is_behind
        if self._is_overtaking(parcel) or is_needless or len(lane.parcels) >= _MAX_QUEUED:
            self._skip(parcel)
            return
        lane.parcels.append(parcel)
        if lane.task is None or lane.task.done():
            lane.task = asyncio.create_task(
                self._bring_all(peer, lane), name="vox-mesh-relay", context=apart()
            )

    def _forget_idle_lanes(self) -> None:
        """Those of nodes that have another address by now, among others."""
        now = self._monotonic()
        for peer, lane in list(self._lanes.items()):
            if (lane.task is None or lane.task.done()) and now >= lane.rests_until:
                del self._lanes[peer]

    def _is_overtaking(self, parcel: _Parcel) -> bool:
        is_gapped = self._is_gapped or parcel.message.receiver_agent in self._gapped
        return is_gapped and not parcel.is_stored

    def _skip(self, parcel: _Parcel) -> None:
        self.counts["skipped"] += 1
        self._leave(parcel)

    def _leave(self, parcel: _Parcel) -> None:
        """It is not brought: whatever is sent to the same receiver next must not overtake it."""
        if not parcel.is_stored:
            self._gapped.add(parcel.message.receiver_agent)

    # --- bringing --------------------------------------------------------------------------------

    async def _bring_all(self, peer: Peer, lane: _Lane) -> None:
        while lane.parcels:
            batch = _next_batch(lane.parcels)
            try:
                await self._bring(peer, batch)
            except RelayFailed as error:
                self._say(
                    logging.WARNING, "messages could not be brought to %s: %s", peer.node_id, error.line
                )
                self._give_up(batch, lane)

    async def _bring(self, peer: Peer, parcels: Sequence[_Parcel]) -> None:
        batch = [parcel for parcel in parcels if not self._is_overtaking(parcel)]
        for parcel in parcels:  # meanwhile one before it was left behind
            if parcel not in batch:
                self._skip(parcel)
        if not batch:
            return
        messages = [parcel.message for parcel in batch]
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
                for parcel in batch:
                    await self._bring(peer, [parcel])
                return
            self.counts["refused"] += 1
            self._say(
                logging.ERROR,
                "%s does not take message %s: %s",
                *(peer.node_id, messages[0].message_uuid, error.line),
            )
            if peer in self._lanes:
                self._lanes[peer].rests_until = self._monotonic() + _REST_S
            self._leave(batch[0])

    async def _deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> None:
        """Have the courier deliver; any exception that it does not promise is a failed delivery."""
        try:
            await self._courier.deliver(peer, messages, stored=stored)
        except (RelayFailed, RelayRefused):
            raise
        except Exception as error:
            self._faults.note(_TASK, error)
            raise RelayFailed(f"unexpected {type(error).__name__}: {error}") from error

    def _give_up(self, batch: Sequence[_Parcel], lane: _Lane) -> None:
        self.counts["given_up"] += len(batch)
        lane.rests_until = self._monotonic() + _REST_S
        for parcel in (*batch, *lane.parcels):
            self._leave(parcel)
        lane.parcels.clear()

    async def close(self) -> None:
        """Bring nothing more."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if self._resolving is not None:
            tasks.append(self._resolving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._courier.close()


def _next_batch(parcels: deque[_Parcel]) -> list[_Parcel]:
    """The next ones that go together: all of them stored, or none."""
    batch = [parcels.popleft()]
    size = len(batch[0].message.payload)
    while parcels and len(batch) < _MAX_AT_ONCE and parcels[0].is_stored is batch[0].is_stored:
        size += len(parcels[0].message.payload)
        if size > _MAX_BYTES_AT_ONCE:
            break
        batch.append(parcels.popleft())
    return batch
