"""Messages: agents send each other messages, which are redelivered until acknowledged.

The way of a message, a module for each step:

- Send: `sending` signs it, stores it in the database, and offers it to the relay.
- Receive: `consumer` waits for messages, claims some and hands them out; `polling` claims what is ready now.
  Both claim through `claims`. `wakeups` wakes consumers after a commit.
- Settle: `settlement` acknowledges, rejects and renews what was handed out.
- Redeliver: the database decides. A message that was rejected, or whose lease is over, can be claimed again
  (`claim` in `sql/messages.sql`). `maintenance` expires messages and notifies senders of overdue ones.
- Relay, a shortcut: `relay_outbound` finds the node of the receiver and delivers to it;
  `relay_inbound` verifies there, and `relay_buffer` keeps messages for the time when the database is
  unreachable. Whatever is not relayed is found in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack

from vox_mesh.errors import BadValue, DatabaseUnavailable
from vox_mesh.messages.acts import sending_acts
from vox_mesh.messages.agent_signatures import AgentSignatures
from vox_mesh.messages.bulk_sending import BulkSender, checked_pairs, draft_all
from vox_mesh.messages.claims import (
    LEASE_S,
    MAX_CLAIMED,
    Claims,
    checked_count,
    checked_lease,
    firsts_of_pairs,
    is_relayed,
)
from vox_mesh.messages.consumer import POLL_S, Consumer
from vox_mesh.messages.drafts import DEFAULT_PRIORITY, DraftOptions, draft_message
from vox_mesh.messages.inboxes import InboxPoller, LocalInboxes
from vox_mesh.messages.outbound import check_outbound
from vox_mesh.messages.queries import MessageQueries
from vox_mesh.messages.receive_loops import ReceiveLoops
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.relay_outbound import AgentDirectory, Auto, Outbox, Route
from vox_mesh.messages.scripts import sql
from vox_mesh.messages.sending import MakeStatements, MessageSender
from vox_mesh.messages.settlement import Settlement
from vox_mesh.messages.signatures import SenderVerifier
from vox_mesh.messages.wakeups import Wakeups
from vox_mesh.model.base.durations import Duration, seconds_of, seconds_or_none
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.messages.records import (
    DEFAULT_TYPE,
    EVERYONE,
    MAX_ATTEMPTS,
    ROLE,
    Message,
    MessageState,
    checked_agent,
    inbox_names,
    signed_order,
)
from vox_mesh.model.messages.scope_address import AT
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.oplog.grants.known_agents import KnownAgents
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.acting import refuse_unless_own
from vox_mesh.store.background import BackgroundTasks
from vox_mesh.store.script import new_key
from vox_mesh.store.store import Store

_BROADCAST_WINDOW_MS: Final = 7 * 86_400_000


class Messages:
    """Send messages for the agents of this process, and receive theirs."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        agent: str | None,
        trusted_keys: TrustedKeys,
        permits: Permits,
        known_agents: Callable[[], KnownAgents],
        *,
        on_agent: Callable[[str, str], None],
    ) -> None:
        """`on_agent` is called with each agent that sends or receives, and its action."""
        monotonic = dependencies.monotonic
        self._store = store
        self._writer = writer
        self._clock = clock
        self._agent = agent
        self._on_agent = on_agent
        self._monotonic = monotonic
        self._background = BackgroundTasks("inbox", store.faults)
        run_in_background = self._background.start
        self._consumers: list[Consumer] = []
        self._permits = permits
        self.agent_signatures = AgentSignatures(store.mesh_id, known_agents)
        self.queries = MessageQueries(store, clock, permits, self.agent_signatures)
        self.verifier = SenderVerifier(store, trusted_keys, monotonic)
        self.directory = AgentDirectory(store, clock, self.verifier, lambda: self.node_id, monotonic)
        self.relay_buffer = RelayBuffer(monotonic)
        self._sender = MessageSender(
            store,
            writer,
            clock,
            self.relay_buffer,
            permits,
            self.agent_signatures,
            self.verifier.proven,
            monotonic,
        )
        self._bulk_sender = BulkSender(self._sender, store, monotonic)
        self.claims = Claims(store, writer, clock, self.verifier, self.agent_signatures, monotonic)
        self.stats = self.claims.stats
        self.scopes: Sequence[str] = ()
        """The scopes of the directory: an agent of another one is addressed as `AGENT@SCOPE`."""
        self._inboxes = LocalInboxes(store, writer, clock, self.relay_buffer, run_in_background, monotonic)
        self._leases = self._inboxes.leases
        self._wakeups = Wakeups(store, self.claims, clock, self.relay_buffer.kept_names)
        self._loops = ReceiveLoops(
            self._consumers,
            self._wakeups,
            self._inboxes,
            self.relay_buffer,
            self.claims.acks,
            run_in_background,
        )
        self._poller = InboxPoller(self.claims, self.relay_buffer, run_in_background, monotonic)
        self._settlement = Settlement(
            self.claims,
            self.relay_buffer,
            self._leases,
            self._consumers,
            run_in_background,
            monotonic,
        )

    @property
    def node_id(self) -> str:
        """The node of this process."""
        return self._writer.identity.node_id

    def sign_order(self, messages: Sequence[Message], receiver: str, *, stored: bool) -> str:
        """Return this node's signature of the order in which it relays messages to another node."""
        text = signed_order(messages, receiver, *self._store.mesh_id, stored=stored)
        return self._writer.identity.key.sign(text)

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
        ttl: Duration | None = None,
        ack_within: Duration | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        traceparent: str | None = None,
        key: str | None = None,
        route: Route = Auto,
        timeout: Duration | None = None,
        statements: MakeStatements | None = None,
        ordered: bool = False,
        signed_by: SigningKey | str | None = None,
        permit: Permit | None = None,
    ) -> Message:
        """Send a message to an agent, or to a role (`role:reviewer`). On return it is stored.

        `body` is any JSON value. `priority`: from 0 (can wait) to 3 (urgent). It is not delivered later than
        `ttl` seconds from now. If it is not acknowledged within `ack_within` seconds, its sender is notified.
        Messages sent with the same `key` (a ULID) and content are one message. The `statements` take effect
        with it, or neither does; such a message is not spooled while the database is unreachable.

        Messages to an agent are received in order. Messages to a role are received in parallel, unless they
        are `ordered`: then the next one of the sender comes when the last was settled.

        `signed_by`: the sender's own key, or its signature made elsewhere, which counts under its `key` only.
        `permit`: for what the mesh itself sends; by default the sender's grant is looked for, if needed.
        """
        timeout_s = seconds_or_none("timeout", timeout)
        sender = await self._checked_sender(sender, [to], permit)
        draft = draft_message(
            sender,
            to,
            body,
            self._clock.now_ms,
            msg_type=msg_type,
            priority=priority,
            thread=thread,
            correlation=correlation,
            reply_to=reply_to,
            ttl=ttl,
            ack_within=ack_within,
            max_attempts=max_attempts,
            traceparent=traceparent,
            key=key,
            ordered=ordered,
        )
        return await self._sender.send(draft, route, timeout_s, statements, signed_by, permit)

    async def send_all(
        self,
        messages: Iterable[tuple[str, Any]],
        *,
        sender: str | None = None,
        timeout: Duration | None = None,
        **options: Unpack[DraftOptions],
    ) -> list[Message]:
        """Send up to 10,000 messages: pairs of a recipient and a body. The options apply to all of them.

        It takes a fraction of the time of as many calls of `send`. All are checked before the first is sent,
        and each pair of agents gets them in this order. Each is stored by itself: if some fail, `NotAllSent`
        says which, and which were sent, when all were tried. `timeout` is that of all of them together.
        """
        deadline = self._bulk_sender.deadline(seconds_or_none("timeout", timeout))
        pairs = checked_pairs(messages, options)
        sender = await self._checked_sender(sender, [to for to, _ in pairs])
        drafts = await draft_all(sender, pairs, self._clock.now_ms, options)
        return await self._bulk_sender.send(drafts, deadline)

    async def _checked_sender(
        self, sender: str | None, receivers: Sequence[str], permit: Permit | None = None
    ) -> str:
        """Return who sends to these, if that is allowed here; learn the time if it is not known."""
        self._clock.refuse_if_off()
        is_of_mesh = sender == MESH_AGENT and permit is not None
        sender = MESH_AGENT if is_of_mesh else self.agent_or_default(sender)
        for to in receivers:
            if self.scopes and AT in sender + to:
                await check_outbound(self._store, self.scopes, sender, to)
        if not is_of_mesh:
            self._on_agent(sender, "send")
        await self.queries.learn_time()
        return sender

    async def send_routed(self, to: str, body: Any, *, route: Route = Auto, **options: Any) -> Message:
        """Send over a route: `Auto`, `Local` (the database alone), or `Remote(node_url)`."""
        return await self.send(to, body, route=route, **options)

    async def broadcast(self, body: Any, **options: Any) -> list[Message]:
        """Send to all agents that received within a week or are live, except the sender.

        Each gets a message of its own; they share one correlation. An agent needs a grant to send to all.
        """
        if "key" in options:
            raise BadValue(
                "a broadcast can't have a key: each recipient gets a message of its own",
                hint="send to each agent under a key of its own",
            )
        sender = self.agent_or_default(options.pop("sender", None))
        await self._permits.permit(sender, lambda: sending_acts(EVERYONE))
        now_ms = self._clock.now_ms
        values = (*self._store.mesh_id, now_ms - _BROADCAST_WINDOW_MS, now_ms, DEAD_AFTER_TICKS)
        agents = [row[0] for row in await self._store.read(sql("recent_agents"), values)]
        options.setdefault("correlation", new_key())
        sending = [self.send(agent, body, sender=sender, **options) for agent in agents if agent != sender]
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

    async def wait_for_ack(self, message: Message, timeout: Duration) -> bool:
        """Wait until a message is acknowledged. Return `False` if it is not in time, or never will be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_of("timeout", timeout)):
                async for _ in self._store.changes():
                    found = await self.queries.find(message.message_uuid)
                    if found is not None and found.state not in (MessageState.STORED, MessageState.DELIVERED):
                        return found.state == MessageState.ACKED
        return False

    # --- receiving -------------------------------------------------------------------------------

    def receive(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        lease: Duration = LEASE_S,
        at_once: int = MAX_CLAIMED,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages for an agent and its roles as they come; each must be acknowledged.

        The next message of a sender comes when the last was acknowledged or rejected. A message that is
        neither within its lease is redelivered, here or elsewhere. At most `at_once` messages are claimed
        together: a slow handler should leave the rest to other receivers.

        An ack in the loop is queued (see `ack`). Its failure is raised by the next step, or by `aclose`,
        which waits for the queued acks; so does `async with aclosing(...)` at its end.
        """

        def make_consumer() -> Consumer:
            return Consumer(
                store=self._store,
                claims=self.claims,
                relay_buffer=self.relay_buffer,
                leases=self._leases,
                clock=self._clock,
                monotonic=self._monotonic,
                names=self._names(agent, roles),
                lease_s=checked_lease(lease),
                at_once=checked_count("at_once", at_once),
                rest_s=self._wakeups.spread(POLL_S),
                is_nudged=not self._wakeups.is_crowded,
            )

        return self._loops.open(make_consumer)

    async def inbox(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = MAX_CLAIMED,
        lease: Duration = LEASE_S,
    ) -> list[Message]:
        """Claim the messages that are ready now, each sender's in order; each must be acknowledged.

        Rejecting one rejects all later ones of its sender.
        """
        checked_count("limit", limit)
        checked_lease(lease)
        names = self._names(agent, roles)
        self._inboxes.announce_if_due(names)
        if not (await self.claims.find_claimable(names)).is_free:
            return []
        return await self.poll_inbox_from_db(agent, roles=roles, limit=limit, lease=lease)

    async def poll_inbox_from_db(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = MAX_CLAIMED,
        lease: Duration = LEASE_S,
    ) -> list[Message]:
        """Claim ready messages as `inbox` does, without consulting the local copy of the database."""
        names = self._names(agent, roles)
        self._inboxes.announce_if_due(names)
        self._clock.refuse_if_off()
        return await self._poller.claim(
            names, limit=checked_count("limit", limit), lease_s=checked_lease(lease)
        )

    def _names(self, agent: str | None, roles: Sequence[str]) -> list[str]:
        agent = self.agent_or_default(agent)
        self._on_agent(agent, "receive")
        return inbox_names(agent, roles)

    @property
    def local_agents(self) -> list[str]:
        """The agents that receive in this process now."""
        return [name for name in self.relay_buffer.names if not name.startswith(ROLE)]

    # --- settling --------------------------------------------------------------------------------

    async def get_claimed(self, beginning: str, claim_owner: str) -> Message:
        """Return a message under a claim that any process has made; the database checks whether it is valid.

        Raises `NotHolder` if it was relayed: then only the node that received it knows the claim.
        """
        message = (await self.queries.get(beginning))._replace(claim_owner=claim_owner)
        if not message.receiver_agent.startswith(ROLE):
            refuse_unless_own(f"message {message.message_uuid}", message.receiver_agent)
        if is_relayed(message):
            raise self.stats.refuse(message)
        return message

    async def ack(self, *messages: Message, durable: bool = False) -> bool:
        """Acknowledge messages. Returns whether the database has recorded it.

        Of a message in progress in an open `receive` loop the ack is only queued, and `False` returned: it is
        written soon, with others and with the next claim. If it fails, the next step of the loop or its end
        raises that. Until it is written, a crash of the process has the message redelivered.

        Any other ack, and each with `durable`, is waited for. It raises `NotHolder` if a message is not held
        by this process. `False`: it is in the spool, because no answer came in time, and takes effect if the
        claim still holds when it is replayed.
        """
        if durable:
            return await self._settlement.ack(messages)
        return await self._settlement.ack_in_loops(messages)

    async def wait_for_acks(self) -> bool:
        """Wait until the queued acks are recorded, or in the spool.

        Returns whether the database has recorded all since the last call, and the spool is empty. Raises the
        failure of one whose loop has ended without raising it; an open loop raises it at its next step.
        """
        return await self.claims.acks.wait() and not self._store.is_spooling

    async def nack(
        self, message: Message, *, retry_in: Duration | None = None, reason: str | None = None
    ) -> None:
        """Reject a message: it is redelivered after `retry_in` seconds, by default longer each time.

        Later messages of its sender wait for it. After its last attempt it becomes a dead letter.
        """
        retry_s = None if retry_in is None else seconds_of("retry_in", retry_in)
        await self._settlement.nack(message, retry_s, reason)

    async def renew(self, message: Message, *, lease: Duration = LEASE_S) -> None:
        """Renew the lease of a message."""
        await self._settlement.renew(message, checked_lease(lease))

    async def put_back(self, messages: Sequence[Message]) -> None:
        """Release messages that were claimed together and not looked at, without counting an attempt."""
        await self.claims.release(messages, firsts_of_pairs(messages))

    def hand_over(self, message: Message) -> None:
        """Stop tracking a message: it stays claimed, for any process that knows the name of its claim."""
        self.claims.hand_over(message)
        for consumer in self._consumers:
            consumer.mark_settled(message)

    # --- for the node ----------------------------------------------------------------------------

    def relay_by(self, outbox: Outbox) -> None:
        """Relay messages to other nodes through this outbox from now on."""
        self._sender.outbox = outbox

    @property
    def is_relayed(self) -> bool:
        """Return whether this node takes part in the relay."""
        return self._sender.outbox is not None

    async def store_relayed(self, message: Message) -> None:
        """Store a relayed message that the sender's node could not store itself.

        Raises `NotGranted` if its sender may not send it, and `DatabaseUnavailable` if that can't be decided.
        """
        outcome = await self._sender.store_relayed(message)
        if outcome.spooled and self._permits.are_in_use:
            raise DatabaseUnavailable(
                f"relayed message {message.message_uuid} not taken in: its sender's grant can't be checked",
                hint="it is delivered when the database is back",
            )

    async def announce(self, names: Sequence[str] | None = None) -> None:
        """Record that these inboxes, by default all with a consumer here, are received on this node."""
        await self._inboxes.announce(names)

    async def lease_inboxes(self) -> None:
        """Acquire or renew the leases of the inboxes that are received only here."""
        await self._inboxes.renew_leases()

    def forget_leases(self) -> None:
        """Stop relying on inbox leases: after a rollback the database may not know them."""
        self._leases.forget()

    async def close(self) -> None:
        """Release all messages that are claimed or about to be."""
        for consumer in self._consumers:
            self._background.start(consumer.close())
        await self._wakeups.close()
        await self._settlement.close()
        await self._background.wait()
        await self.claims.release_all(self.relay_buffer.holds.end_all())
        await self._inboxes.leave(self.relay_buffer.names)

    # --- deprecated ------------------------------------------------------------------------------

    @property
    def letters(self) -> MessageQueries:
        """Return `queries` under its old name, which is deprecated."""
        warn_renamed("messages.letters", "messages.queries")
        return self.queries

    async def acked(self, message: Message, timeout: Duration) -> bool:
        """Call `wait_for_ack` under its old name, which is deprecated."""
        warn_renamed("messages.acked", "messages.wait_for_ack")
        return await self.wait_for_ack(message, timeout)
