"""The bus: agents send each other messages that are kept until somebody says that they are done with."""

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
from vox_mesh.messages.scripts import announce_script, send_beside, send_plainly, send_script, sql, taken
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
from vox_mesh.observability.log_context import of_message
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store

DEFAULT_TYPE: Final = "message"
DEFAULT_PRIORITY: Final = 1
MAX_TTL_S: Final = 366 * 86_400.0
_MAX_ANNOUNCED: Final = 1_024
_ANNOUNCED_S: Final = 30.0
_LATELY_MS: Final = 7 * 86_400_000
_KEY_REFUSED: Final = "key_refused"

Beside = Callable[[Message], Sequence[Statement]]
"""What is to take effect together with a message, by what it has become."""


class Bus:
    """Sends messages for the agents of this process, and receives theirs."""

    def __init__(
        self,
        store: Store,
        author: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        agent: str | None,
    ) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._author = author
        self._clock = clock
        self._agent = agent
        self._monotonic = dependencies.monotonic
        self._signing = Signing(self._mesh)
        self.senders = Senders(store, dependencies.monotonic)
        self.arrivals = RelayBuffer(dependencies.monotonic)
        self._leases = InboxLeases(store, clock, self._receiver, dependencies.monotonic)
        self.whereabouts = AgentDirectory(
            store, clock, lambda: author.identity.node_id, dependencies.monotonic
        )
        self.letters = MessageQueries(store, clock)
        self._claims = Claims(store, author, clock, self.senders, dependencies.monotonic)
        self.stats = self._claims.stats
        self._outbox: Outbox | None = None
        self._is_key_recorded = False
        self._announced = Recent[str, float](_MAX_ANNOUNCED)  # names, and when they were
        self._unannounced: set[str] = set()
        self._consumers: list[Consumer] = []
        self._wakeups = Wakeups(store, self._claims, clock, self.arrivals.kept_names)
        self._leaving: set[asyncio.Task[None]] = set()
        self._handling = Handling(
            *(self._claims, self.arrivals, self._leases, self._consumers),
            *(self._in_background, dependencies.monotonic),
        )

    def relay_by(self, outbox: Outbox) -> None:
        """Have messages brought to other nodes from now on."""
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
        """Send a message to an agent, or to whoever has a role (`role:reviewer`); it is stored on return.

        `body` is anything that is JSON. `priority`: 0 can wait, 3 is urgent. After `ttl` seconds it is not
        delivered any more. If it is not acknowledged within `ack_within` seconds, its sender is told. Sent
        again under the same `key`, a ULID, and with the same words, it is one message. The statements of
        `beside` take effect together with it, or neither does; while the database is away nothing is kept.
        """
        self._clock.refuse_if_off()
        if to == EVERYONE:
            raise BadValue("a message to everyone is several messages", hint="use broadcast")
        sender = self.agent_or_default(sender)
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1_000:
            raise BadValue(f"a message can't be tried {max_attempts} times", hint="from 1 to 1000 times")
        await self.letters.learn_time()
        now_ms = self._clock.now_ms
        own = self._author.identity  # known first: the clock ticks in its name
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
                sender_incarnation=self._author.incarnation,
                traceparent=traceparent or carried,
            )
            message = await self._signing.signed(unsigned, own.key)
            return await self._stored(message, route, timeout, () if beside is None else beside(message))

    async def _stored(
        self, message: Message, route: Route, timeout: float | None, beside: Sequence[Statement]
    ) -> Message:
        """Store a signed message, and have it brought to where it is received."""
        if self._author.identity.is_command:
            await self._store_for_command(message, timeout, beside)
            return message
        if not self._is_key_recorded:
            await self._record_key(timeout)
        if beside:
            outcome = await self._store_beside(message, beside, timeout)
        else:
            outcome = await self._kept(message, timeout)
        if self._outbox is not None:
            self._outbox.offer(message, stored=not outcome.spooled, route=route)
        else:
            self.arrivals.nudge(message.receiver_agent, message.message_uuid)
        return message._replace(state=MessageState.SPOOLED) if outcome.spooled else message

    async def _record_key(self, timeout: float | None) -> None:
        """Whoever has sent a message is known by its key from then on, or those would be forged one day."""
        own = self._author.identity
        values = (*self._mesh, own.node_id, own.key.public)
        await self._store.write(
            Script(Statement(sql("record_key"), values), appendable=True), timeout=timeout
        )
        self._is_key_recorded = True

    async def keep_brought(self, message: Message) -> None:
        """Store a message that another node brought, which could not store it itself."""
        await self._kept(message, None)

    async def _kept(self, message: Message, timeout: float | None) -> Outcome:
        outcome = await self._store.write(send_script(message), timeout=timeout)
        if not outcome.rows and not outcome.spooled:
            # Another message has its id, or there is a newer process of this node: this raises which.
            await self._store_plainly(message, (), timeout)
        return outcome

    async def _store_beside(
        self, message: Message, beside: Sequence[Statement], timeout: float | None
    ) -> Outcome:
        try:
            return await self._store.write(send_beside(self._mesh, message, beside), timeout=timeout)
        except Refused as refused:
            if refused.reason != MessageTaken.code:
                raise
            raise taken(message) from None

    async def _store_for_command(
        self, message: Message, timeout: float | None, beside: Sequence[Statement]
    ) -> None:
        """A command comes with the key that is known for its node, or makes it known."""
        own = self._author.identity
        values = (*self._mesh, own.node_id, own.chain, own.key.public)
        guard = Statement(sql("refuse_other_key"), values, refusal=_KEY_REFUSED)
        record = Statement(sql("record_key"), (*self._mesh, own.chain, own.key.public))
        try:
            if beside:
                await self._store_beside(message, (guard, record, *beside), timeout)
            else:
                await self._store_plainly(message, (guard, record), timeout)
        except Refused as refused:
            if refused.reason != _KEY_REFUSED:
                raise
            raise key_refused(own.node_id, own.key.public) from None

    async def _store_plainly(
        self, message: Message, before: Sequence[Statement], timeout: float | None
    ) -> None:
        outcome = await self._store.write(send_plainly(self._mesh, message, *before), timeout=timeout)
        if not outcome.rows:
            raise taken(message)

    async def send_routed(self, receiver: str, body: Any, *, route: Route = Auto, **options: Any) -> Message:
        """Send over a route: `Auto`, `Local` (the database alone), or `Remote(node_url)`."""
        return await self.send(receiver, body, route=route, **options)

    async def broadcast(self, body: Any, **options: Any) -> list[Message]:
        """Send to everyone but the sender: all agents that have received within a week, or are live.

        Each gets a message of its own; they have one correlation.
        """
        if "key" in options:
            raise BadValue("a message to everyone is several messages, and can't have one key for all")
        sender = self.agent_or_default(options.pop("sender", None))
        now_ms = self._clock.now_ms
        values = (*self._mesh, now_ms - _LATELY_MS, now_ms, DEAD_AFTER_TICKS)
        known = [row[0] for row in await self._store.read(sql("everyone"), values)]
        options.setdefault("correlation", new_key())
        sending = [self.send(each, body, sender=sender, **options) for each in known if each != sender]
        return list(await asyncio.gather(*sending))

    async def reply(self, message: Message, body: Any, **options: Any) -> Message:
        """Answer a message: to its sender, in its thread, by whom it was for."""
        is_for_role = message.receiver_agent.startswith(ROLE)
        options.setdefault("sender", None if is_for_role else message.receiver_agent)
        options.setdefault("correlation", message.correlation_id)
        options.setdefault("traceparent", message.traceparent)
        return await self.send(
            message.sender_agent, body, thread=message.thread, reply_to=message.message_uuid, **options
        )

    def agent_or_default(self, agent: str | None) -> str:
        """The agent that is named, or this process's own."""
        return checked_agent(agent or self._agent or self._author.identity.node_id)

    # --- receiving -------------------------------------------------------------------------------

    async def receive(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        lease: float = LEASE_S,
        at_once: int = MAX_CLAIMED,
    ) -> AsyncGenerator[Message, None]:
        """The messages for an agent, and for the roles it has, as they come; each is to be acknowledged.

        The next one of a sender comes when the last was acknowledged or given back. One that is neither
        within its lease comes again, here or elsewhere. Of those that wait, `at_once` are claimed together
        at the most: whoever works long on each should leave the others to others.
        """
        consumer = Consumer(
            *(self._store, self._claims, self.arrivals, self._leases, self._clock),
            *(self._names(agent, roles), checked_lease(lease), self._monotonic, checked_count(at_once)),
            rest_s=self._wakeups.spread(POLL_S),
            is_nudged=not self._wakeups.is_crowded,
        )
        self._consumers.append(consumer)
        self.arrivals.join(consumer.names, consumer)
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
                with of_message(message):
                    yield message
        finally:
            self._consumers.remove(consumer)
            self._wakeups.leave()
            self.arrivals.leave(consumer.names, consumer)
            is_cancelled = handler is not None and (handler.cancelling() > 0 or handler.cancelled())
            self._in_background(self._leave(consumer, is_cancelled=is_cancelled))

    def _handler_ended(self, consumer: Consumer, handler: asyncio.Task[Any]) -> None:
        """Release what a cancelled handler had: nobody will settle it, and the loop may never be closed."""
        if handler.cancelled() and not handler.get_loop().is_closed():
            self._in_background(consumer.give_up())

    async def _leave(self, consumer: Consumer, *, is_cancelled: bool) -> None:
        """Release what a consumer had, and the leases of inboxes that nothing receives from here any more."""
        if is_cancelled:
            await consumer.give_up()
        await consumer.close()
        if self._leases.is_held:
            await self._leave_inboxes([name for name in consumer.names if name not in self.arrivals.names])

    async def _leave_inboxes(self, names: Sequence[str]) -> None:
        """Receive from these no more. What is not settled keeps the lease of its inbox until that ends."""
        in_use = self._in_use(names)
        if free := [name for name in names if name not in in_use]:
            await self._leases.leave(free)

    def _in_use(self, names: Sequence[str]) -> Collection[str]:
        """Return the inboxes of messages that were handed out under a lease and are not settled yet."""
        return names if self._store.is_spooling else self.arrivals.holds.receivers()

    async def inbox(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = MAX_CLAIMED,
        lease: float = LEASE_S,
    ) -> list[Message]:
        """Claim what there is now, each sender's in order; each is to be acknowledged.

        Giving one back gives back all that its sender wrote later.
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
        """The same, by the database itself, whatever our copy of it shows."""
        names = self._names(agent, roles)
        self._announce_once(names)
        self._clock.refuse_if_off()
        return await self._handling.claim(names, checked_count(limit), checked_lease(lease))

    def _names(self, agent: str | None, roles: Sequence[str]) -> list[str]:
        return inbox_names(self.agent_or_default(agent), roles)

    async def ack(self, *messages: Message) -> bool:
        """Acknowledge these; `NotHolder` if one is not ours to acknowledge.

        Returns whether the database has recorded it. `False`: the ack is in the spool, because no answer
        came in time, and takes effect if the claim still holds when it is replayed.
        """
        return await self._handling.ack(messages)

    async def nack(
        self, message: Message, *, retry_in: float | None = None, reason: str | None = None
    ) -> None:
        """Give a message back: it comes again after so many seconds, by default longer each time.

        What its sender wrote later waits for it. After its last attempt it goes to the dead letters.
        """
        await self._handling.nack(message, retry_in, reason)

    async def renew(self, message: Message, *, lease: float = LEASE_S) -> None:
        """Have a message for its time again, from now on."""
        await self._handling.renew(message, checked_lease(lease))

    async def put_back(self, messages: Sequence[Message]) -> None:
        """Give back messages that were claimed together, and that nobody has looked at: it is no attempt."""
        await self._claims.release(messages, firsts_of_pairs(messages))

    def hand_over(self, message: Message) -> None:
        """Have no more to do with a message: it stays claimed, for whoever knows the name of its claim."""
        self._claims.hand_over(message)
        for consumer in self._consumers:
            consumer.settled(message)

    async def acked(self, message: Message, timeout: float) -> bool:
        """Wait until a message is acknowledged; `False` if it is not in time, or never will be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    seen = self._store.change_count
                    found = await self.letters.find(message.message_uuid)
                    if found is not None and found.state not in (MessageState.STORED, MessageState.DELIVERED):
                        return found.state == MessageState.ACKED
                    await self._store.changed(seen)
        return False

    # --- life ------------------------------------------------------------------------------------

    async def announce(self, names: Sequence[str] | None = None) -> None:
        """Make known that these are received here; by default all that are."""
        names = self.arrivals.names if names is None else names
        if names:
            own = self._author.identity
            node = "" if own.is_command else own.node_id
            with suppress(MeshError):  # then they are found without the relay, and it is said again later
                await self._store.write(announce_script(self._mesh, names, node, self._receiver()))

    def _receiver(self) -> str:
        """Return the name of this process as a receiver: its node, or the chain of a command."""
        own = self._author.identity
        return own.chain if own.is_command else own.node_id

    def _announce_soon(self, names: Sequence[str]) -> None:
        """Make known that these are received here, in one write for all that begin together."""
        if not self._unannounced:
            self._in_background(self._announce_all())
        self._unannounced.update(names)

    async def _announce_all(self) -> None:
        names, self._unannounced = list(self._unannounced), set()
        await self.announce(names)

    def _announce_once(self, names: Sequence[str]) -> None:
        """Make it known now and then: whoever has leased the inbox is to know that others want it too."""
        now = self._monotonic()
        if any(now - self._announced.get(name, float("-inf")) > _ANNOUNCED_S for name in names):
            for name in names:
                self._announced[name] = now
            self._in_background(self.announce(names))

    async def lease_inboxes(self) -> None:
        """Lease the inboxes that are received here and nowhere else, or renew the leases of them."""
        names = self.arrivals.names
        await self._leases.run_once(names, partial(self._in_use, names))
        for name in names:
            if (until := self._leases.until(name)) is not None:
                self.arrivals.holds.extend(name, until)

    def forget_leases(self) -> None:
        """Rely on no lease of an inbox: after a rollback the database may not know it."""
        self._leases.forget()

    @property
    def is_relayed(self) -> bool:
        """Whether messages are brought to this node by others."""
        return self._outbox is not None

    def _in_background(self, leaving: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._store.faults.absorb("inbox", leaving), name="vox-mesh-inbox")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Give back what is in somebody's hands, or was to be."""
        for consumer in self._consumers:
            self._in_background(consumer.close())
        await self._wakeups.close()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._claims.release_all(self.arrivals.holds.end_all())
        if self._leases.is_held:
            await self._leave_inboxes(self.arrivals.names)


def _time_after(now_ms: int, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= MAX_TTL_S:
        raise BadValue(f"{seconds} s is no time for a message", hint="more than nothing, a year at most")
    return now_ms + round(seconds * 1_000)
