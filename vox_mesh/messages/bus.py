"""The message bus: agents send each other messages, which are redelivered until acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from vox_mesh.errors import BadValue, MeshError, MessageTaken, Refused
from vox_mesh.messages.claims import (
    LEASE_S,
    MAX_CLAIMED,
    Claims,
    checked_count,
    checked_lease,
    firsts_of_pairs,
)
from vox_mesh.messages.consumer import POLL_S, Consumer
from vox_mesh.messages.directory import AgentDirectory
from vox_mesh.messages.handling import Handling
from vox_mesh.messages.inbox_leases import InboxLeases
from vox_mesh.messages.queries import MessageQueries
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.relay_outbound import Auto, Outbox, Route
from vox_mesh.messages.scripts import announce_script, id_taken, send_guarded, send_script, send_with, sql
from vox_mesh.messages.signing import Signing
from vox_mesh.messages.verification import Senders
from vox_mesh.messages.wakeups import Wakeups
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import (
    EVERYONE,
    MAX_ATTEMPTS,
    MAX_PAYLOAD_BYTES,
    ROLE,
    Message,
    MessageState,
    checked_agent,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_trace,
    checked_word,
    inbox_names,
    payload_of,
)
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import key_refused
from vox_mesh.observability import tracing
from vox_mesh.observability.log_context import message_scope
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store

DEFAULT_TYPE: Final = "message"
DEFAULT_PRIORITY: Final = 1
MAX_TTL_S: Final = 366 * 86_400.0
_MAX_ANNOUNCED: Final = 1_024
_ANNOUNCE_INTERVAL_S: Final = 30.0
_BROADCAST_WINDOW_MS: Final = 7 * 86_400_000
_KEY_REFUSED: Final = "key_refused"

Beside = Callable[[Message], Sequence[Statement]]
"""Returns the statements that take effect together with a message."""


class Bus:
    """Send messages for the agents of this process, and receive theirs."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        agent: str | None,
    ) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._writer = writer
        self._clock = clock
        self._agent = agent
        self._monotonic = dependencies.monotonic
        self._signing = Signing(self._mesh)
        self.senders = Senders(store, dependencies.monotonic)
        self.relay_buffer = RelayBuffer(dependencies.monotonic)
        self._leases = InboxLeases(store, clock, self._receiver, dependencies.monotonic)
        self.directory = AgentDirectory(store, clock, lambda: writer.identity.node_id, dependencies.monotonic)
        self.letters = MessageQueries(store, clock)
        self._claims = Claims(store, writer, clock, self.senders, dependencies.monotonic)
        self.stats = self._claims.stats
        self._outbox: Outbox | None = None
        self._is_key_recorded = False
        self._announced = Recent[str, float](_MAX_ANNOUNCED)  # names, and when they were announced
        self._unannounced: set[str] = set()
        self._consumers: list[Consumer] = []
        self._wakeups = Wakeups(store, self._claims, clock, self.relay_buffer.kept_names)
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._handling = Handling(
            *(self._claims, self.relay_buffer, self._leases, self._consumers),
            *(self._run_in_background, dependencies.monotonic),
        )

    def relay_by(self, outbox: Outbox) -> None:
        """Relay messages to other nodes through this outbox from now on."""
        self._outbox = outbox

    # --- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        to: str,
        body: Any,
        *,
        sender: str | None = None,
        msg_type: str = DEFAULT_TYPE,
        priority: int = DEFAULT_PRIORITY,
        thread: str | None = None,
        correlation: str | None = None,
        reply_to: str | None = None,
        ttl: float | None = None,
        ack_within: float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        traceparent: str | None = None,
        key: str | None = None,
        route: Route = Auto,
        timeout: float | None = None,
        beside: Beside | None = None,
    ) -> Message:
        """Send a message to an agent, or to a role (`role:reviewer`). On return it is stored.

        `body` is any JSON value. `priority`: from 0 (can wait) to 3 (urgent). It is not delivered later than
        `ttl` seconds from now. If it is not acknowledged within `ack_within` seconds, its sender is notified.
        Messages sent with the same `key` (a ULID) and content are one message. The statements of `beside`
        take effect with it, or neither does; such a message is not spooled while the database is unreachable.
        """
        self._clock.refuse_if_off()
        if to == EVERYONE:
            raise BadValue("a message to everyone is several messages", hint="use broadcast")
        sender = self.agent_or_default(sender)
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1_000:
            raise BadValue(f"a message can't be tried {max_attempts} times", hint="from 1 to 1000 times")
        await self.letters.learn_time()
        now_ms = self._clock.now_ms
        own = self._writer.identity  # loaded first: the clock ticks in its name
        if traceparent is not None:
            checked_trace(traceparent)
        with self._signing.sending(), tracing.sending(traceparent, to) as carried:
            unsigned = Message(
                message_uuid=new_key() if key is None else checked_id(key),
                sender_agent=sender,
                receiver_agent=checked_receiver(to),
                msg_type=checked_word("type of message", msg_type),
                payload=payload_of(body, MAX_PAYLOAD_BYTES),
                priority=checked_priority(priority),
                thread_id=None if thread is None else checked_word("thread", thread),
                correlation_id=None if correlation is None else checked_word("correlation", correlation),
                reply_to=None if reply_to is None else checked_id(reply_to),
                expires_ms=_time_after(now_ms, ttl),
                ack_by_ms=_time_after(now_ms, ack_within),
                max_attempts=max_attempts,
                hlc=str(self._clock.tick(now_ms)),
                sender_node=own.node_id,
                sender_incarnation=self._writer.incarnation,
                traceparent=traceparent or carried,
            )
            message = await self._signing.sign(unsigned, own.key)
            return await self._send_signed(message, route, timeout, () if beside is None else beside(message))

    async def _send_signed(
        self, message: Message, route: Route, timeout: float | None, beside: Sequence[Statement]
    ) -> Message:
        """Store a signed message, and relay it to the node of its receiver."""
        if self._writer.identity.is_command:
            await self._store_for_command(message, timeout, beside)
            return message
        if not self._is_key_recorded:
            await self._record_key(timeout)
        if beside:
            outcome = await self._store_with(message, beside, timeout)
        else:
            outcome = await self._store_message(message, timeout)
        if self._outbox is not None:
            self._outbox.offer(message, stored=not outcome.spooled, route=route)
        else:
            self.relay_buffer.nudge(message.receiver_agent, message.message_uuid)
        return message._replace(state=MessageState.SPOOLED) if outcome.spooled else message

    async def _record_key(self, timeout: float | None) -> None:
        """Record the key of this node before its first message, so that its messages can be verified."""
        own = self._writer.identity
        values = (*self._mesh, own.node_id, own.key.public)
        await self._store.write(
            Script(Statement(sql("record_key"), values), appendable=True), timeout=timeout
        )
        self._is_key_recorded = True

    async def store_relayed(self, message: Message) -> None:
        """Store a relayed message that the sender's node could not store itself."""
        await self._store_message(message, None)

    async def _store_message(self, message: Message, timeout: float | None) -> Outcome:
        outcome = await self._store.write(send_script(message), timeout=timeout)
        if not outcome.rows and not outcome.spooled:
            # Another message has its id, or this process was superseded: this raises which.
            await self._store_guarded(message, (), timeout)
        return outcome

    async def _store_with(
        self, message: Message, beside: Sequence[Statement], timeout: float | None
    ) -> Outcome:
        try:
            return await self._store.write(send_with(self._mesh, message, beside), timeout=timeout)
        except Refused as refused:
            if refused.reason != MessageTaken.code:
                raise
            raise id_taken(message) from None

    async def _store_for_command(
        self, message: Message, timeout: float | None, beside: Sequence[Statement]
    ) -> None:
        """Store a command's message, if it has the key known for its node or none is known yet."""
        own = self._writer.identity
        values = (*self._mesh, own.node_id, own.chain, own.key.public)
        guard = Statement(sql("refuse_other_key"), values, refusal=_KEY_REFUSED)
        record = Statement(sql("record_key"), (*self._mesh, own.chain, own.key.public))
        try:
            if beside:
                await self._store_with(message, (guard, record, *beside), timeout)
            else:
                await self._store_guarded(message, (guard, record), timeout)
        except Refused as refused:
            if refused.reason != _KEY_REFUSED:
                raise
            raise key_refused(own.node_id, own.key.public) from None

    async def _store_guarded(
        self, message: Message, before: Sequence[Statement], timeout: float | None
    ) -> None:
        outcome = await self._store.write(send_guarded(self._mesh, message, *before), timeout=timeout)
        if not outcome.rows:
            raise id_taken(message)

    async def send_routed(self, receiver: str, body: Any, *, route: Route = Auto, **options: Any) -> Message:
        """Send over a route: `Auto`, `Local` (the database alone), or `Remote(node_url)`."""
        return await self.send(receiver, body, route=route, **options)

    async def broadcast(self, body: Any, **options: Any) -> list[Message]:
        """Send to all agents that received within a week or are live, except the sender.

        Each gets a message of its own; they share one correlation.
        """
        if "key" in options:
            raise BadValue("a message to everyone is several messages, and can't have one key for all")
        sender = self.agent_or_default(options.pop("sender", None))
        now_ms = self._clock.now_ms
        values = (*self._mesh, now_ms - _BROADCAST_WINDOW_MS, now_ms, DEAD_AFTER_TICKS)
        known = [row[0] for row in await self._store.read(sql("recent_agents"), values)]
        options.setdefault("correlation", new_key())
        sending = [self.send(each, body, sender=sender, **options) for each in known if each != sender]
        return list(await asyncio.gather(*sending))

    async def reply(self, message: Message, body: Any, **options: Any) -> Message:
        """Reply to a message: to its sender, in its thread, as its recipient."""
        is_for_role = message.receiver_agent.startswith(ROLE)
        options.setdefault("sender", None if is_for_role else message.receiver_agent)
        options.setdefault("correlation", message.correlation_id)
        options.setdefault("traceparent", message.traceparent)
        return await self.send(
            message.sender_agent, body, thread=message.thread, reply_to=message.message_uuid, **options
        )

    def agent_or_default(self, agent: str | None) -> str:
        """Return the given agent, or the default agent of this process."""
        return checked_agent(agent or self._agent or self._writer.identity.node_id)

    # --- receiving -------------------------------------------------------------------------------

    async def receive(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        lease: float = LEASE_S,
        at_once: int = MAX_CLAIMED,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages for an agent and its roles as they come; each must be acknowledged.

        The next message of a sender comes when the last was acknowledged or rejected. A message that is
        neither within its lease is redelivered, here or elsewhere. At most `at_once` messages are claimed
        together: a slow handler should leave the rest to other receivers.
        """
        consumer = Consumer(
            *(self._store, self._claims, self.relay_buffer, self._leases, self._clock),
            *(self._names(agent, roles), checked_lease(lease), self._monotonic, checked_count(at_once)),
            rest_s=self._wakeups.spread(POLL_S),
            is_nudged=not self._wakeups.is_crowded,
        )
        self._consumers.append(consumer)
        self.relay_buffer.join(consumer.names, consumer)
        self._wakeups.join()
        self._announce_soon(consumer.names)
        handler: asyncio.Task[Any] | None = None
        try:
            while True:
                with self._wakeups.waking(consumer):
                    message = await consumer.next()
                task = asyncio.current_task()
                if task is not None and task is not handler:
                    task.add_done_callback(partial(self._handler_ended, consumer))
                handler = task
                with message_scope(message):
                    yield message
        finally:
            self._consumers.remove(consumer)
            self._wakeups.leave()
            self.relay_buffer.leave(consumer.names, consumer)
            is_cancelled = handler is not None and (handler.cancelling() > 0 or handler.cancelled())
            self._run_in_background(self._leave(consumer, is_cancelled=is_cancelled))

    def _handler_ended(self, consumer: Consumer, handler: asyncio.Task[Any]) -> None:
        """Release the messages of a cancelled handler, since it will not settle them."""
        if handler.cancelled() and not handler.get_loop().is_closed():
            self._run_in_background(consumer.give_up())

    async def _leave(self, consumer: Consumer, *, is_cancelled: bool) -> None:
        """Release the messages of a consumer, and the leases of inboxes without a consumer here."""
        if is_cancelled:
            await consumer.give_up()
        await consumer.close()
        if self._leases.is_held:
            names = self.relay_buffer.names
            await self._leave_inboxes([each for each in consumer.names if each not in names])

    async def _leave_inboxes(self, names: Sequence[str]) -> None:
        """Stop receiving from these. The lease of an inbox with unsettled messages is left to expire."""
        in_use = self._in_use(names)
        if free := [name for name in names if name not in in_use]:
            await self._leases.leave(free)

    def _in_use(self, names: Sequence[str]) -> Collection[str]:
        """Return the inboxes of messages that were handed out under a lease and are not settled yet."""
        return names if self._store.is_spooling else self.relay_buffer.holds.receivers()

    async def inbox(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = MAX_CLAIMED,
        lease: float = LEASE_S,
    ) -> list[Message]:
        """Claim the messages that are ready now, each sender's in order; each must be acknowledged.

        Rejecting one rejects all later ones of its sender.
        """
        checked_count(limit)
        checked_lease(lease)
        names = self._names(agent, roles)
        self._announce_once(names)
        if not (await self._claims.look(names)).is_free:
            return []
        return await self.poll_inbox_from_db(agent, roles=roles, limit=limit, lease=lease)

    async def poll_inbox_from_db(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = MAX_CLAIMED,
        lease: float = LEASE_S,
    ) -> list[Message]:
        """Claim ready messages as `inbox` does, without consulting the local copy of the database."""
        names = self._names(agent, roles)
        self._announce_once(names)
        self._clock.refuse_if_off()
        return await self._handling.claim(names, checked_count(limit), checked_lease(lease))

    def _names(self, agent: str | None, roles: Sequence[str]) -> list[str]:
        return inbox_names(self.agent_or_default(agent), roles)

    async def ack(self, *messages: Message) -> bool:
        """Acknowledge messages; raise `NotHolder` if one is not held by this process.

        Returns whether the database has recorded it. `False`: the ack is in the spool, because no answer came
        in time, and takes effect if the claim still holds when it is replayed.
        """
        return await self._handling.ack(messages)

    async def nack(
        self, message: Message, *, retry_in: float | None = None, reason: str | None = None
    ) -> None:
        """Reject a message: it is redelivered after `retry_in` seconds, by default longer each time.

        Later messages of its sender wait for it. After its last attempt it becomes a dead letter.
        """
        await self._handling.nack(message, retry_in, reason)

    async def renew(self, message: Message, *, lease: float = LEASE_S) -> None:
        """Renew the lease of a message."""
        await self._handling.renew(message, checked_lease(lease))

    async def put_back(self, messages: Sequence[Message]) -> None:
        """Release messages that were claimed together and not looked at, without counting an attempt."""
        await self._claims.release(messages, firsts_of_pairs(messages))

    def hand_over(self, message: Message) -> None:
        """Stop tracking a message: it stays claimed, for any process that knows the name of its claim."""
        self._claims.hand_over(message)
        for consumer in self._consumers:
            consumer.mark_settled(message)

    async def acked(self, message: Message, timeout: float) -> bool:
        """Wait until a message is acknowledged. Return `False` if it is not in time, or never will be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    seen = self._store.change_count
                    found = await self.letters.find(message.message_uuid)
                    if found is not None and found.state not in (MessageState.STORED, MessageState.DELIVERED):
                        return found.state == MessageState.ACKED
                    await self._store.changed(seen)
        return False

    # --- announcing, leasing, closing ------------------------------------------------------------

    async def announce(self, names: Sequence[str] | None = None) -> None:
        """Record that these inboxes, by default all with a consumer here, are received on this node."""
        names = self.relay_buffer.names if names is None else names
        if names:
            own = self._writer.identity
            node = "" if own.is_command else own.node_id
            with suppress(MeshError):  # they are found without the relay, and announced again later
                await self._store.write(announce_script(self._mesh, names, node, self._receiver()))

    def _receiver(self) -> str:
        """Return the name of this process as a receiver: its node, or the chain of a command."""
        own = self._writer.identity
        return own.chain if own.is_command else own.node_id

    def _announce_soon(self, names: Sequence[str]) -> None:
        """Announce these names, in one write for all that begin together."""
        if not self._unannounced:
            self._run_in_background(self._announce_all())
        self._unannounced.update(names)

    async def _announce_all(self) -> None:
        names, self._unannounced = list(self._unannounced), set()
        await self.announce(names)

    def _announce_once(self, names: Sequence[str]) -> None:
        """Announce these names now and then, so that a node which leases the inbox sees other receivers."""
        now = self._monotonic()
        if any(now - self._announced.get(name, float("-inf")) > _ANNOUNCE_INTERVAL_S for name in names):
            for name in names:
                self._announced[name] = now
            self._run_in_background(self.announce(names))

    async def lease_inboxes(self) -> None:
        """Acquire or renew the leases of the inboxes that are received only here."""
        names = self.relay_buffer.names
        await self._leases.run_once(names, partial(self._in_use, names))
        for name in names:
            if (until := self._leases.until(name)) is not None:
                self.relay_buffer.holds.extend(name, until)

    def forget_leases(self) -> None:
        """Stop relying on inbox leases: after a rollback the database may not know them."""
        self._leases.forget()

    @property
    def is_relayed(self) -> bool:
        """Return whether this node takes part in the relay."""
        return self._outbox is not None

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._store.faults.absorb("inbox", work), name="vox-mesh-inbox")
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def close(self) -> None:
        """Release all messages that are claimed or about to be."""
        for consumer in self._consumers:
            self._run_in_background(consumer.close())
        await self._wakeups.close()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        await self._claims.release_all(self.relay_buffer.holds.end_all())
        if self._leases.is_held:
            await self._leave_inboxes(self.relay_buffer.names)


def _time_after(now_ms: int, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= MAX_TTL_S:
        raise BadValue(f"{seconds} s is no time for a message", hint="more than nothing, a year at most")
    return now_ms + round(seconds * 1_000)
