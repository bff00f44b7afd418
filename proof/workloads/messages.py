"""Messages: sent one by one or in batches, to one or several recipients, acknowledged, rejected or left to
expire."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from proof.history import OperationRecord
from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.numbered import Numbers, key_of, rng_of
from vox_mesh.errors import MeshError
from vox_mesh.messages.scripts import send_script
from vox_mesh.model.base import ulid
from vox_mesh.model.messages.records import Message, MessageState

_ROLE: Final = "proof-crew"
CREW: Final = f"role:{_ROLE}"
"""The inbox that all nodes receive from, in addition to their own."""

_INBOX: Final = "proof-"
_MESSAGE: Final = "message"
_REPLY: Final = "reply"
_SENDS: Final = 0.4
_TOGETHER: Final = 0.2
_MOST_TOGETHER: Final = 4
_TO_CREW: Final = 0.4
_EXPIRES: Final = 0.2
_SOON_DEAD: Final = 0.1
_ORDERED: Final = 0.5
_REPLIES: Final = 0.1
_BROADCASTS: Final = 0.03
_GIVES_BACK: Final = 0.1
_KEEPS: Final = 0.1
_WAITS: Final = 0.3
_CONFIRMS: Final = 0.3
_UNREADABLE: Final = 0.1
_DEEP: Final = "unreadable"
UNREADABLE_PAYLOAD: Final = "[" * 252 + "]" * 252
"""A payload that can be stored, but not passed on inside an answer."""


def inbox_of(who: str) -> str:
    """Return the agent id with which a node sends and receives."""
    return f"{_INBOX}{who}"


def is_received(inbox: str) -> bool:
    """Return whether a node receives from an inbox; broadcasts may have other recipients too."""
    return inbox == CREW or inbox.startswith(_INBOX)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A message as its node defines it, the same in every incarnation."""

    key: str
    to: str
    expires: bool
    attempts: int
    is_ordered: bool

    @classmethod
    def of(cls, context: WorkloadContext, number: int) -> _Plan:
        rng = rng_of(context.who, _MESSAGE, number)
        others = context.others or context.nodes
        to = CREW if rng.random() < _TO_CREW else inbox_of(rng.choice(others))
        expires, is_soon_dead = rng.random() < _EXPIRES, rng.random() < _SOON_DEAD
        attempts, is_ordered = 2 if is_soon_dead else 20, rng.random() < _ORDERED
        return cls(key_of(context.who, _MESSAGE, number), to, expires, attempts, is_ordered)


async def run(context: WorkloadContext) -> None:
    """Send, and receive."""
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(_Receiver(context).run())
        await _send_all_the_time(context)
        receiving.cancel()


# --- sending --------------------------------------------------------------------------------------


async def _send_all_the_time(context: WorkloadContext) -> None:
    numbers = Numbers(context)
    async for _ in context.rounds():
        if context.rng.random() > _SENDS:
            continue
        is_several = context.rng.random() < _TOGETHER
        count = context.rng.randint(2, _MOST_TOGETHER) if is_several else 1
        select_kinds = dict.fromkeys(numbers.next() for _ in range(count))
        await asyncio.gather(*(_send(context, _Plan.of(context, each)) for each in select_kinds))
        await _store_unreadable(context, next(iter(select_kinds)))
        if context.rng.random() < _BROADCASTS:
            await _broadcast(context)


async def _send(context: WorkloadContext, plan: _Plan) -> None:
    ttl = context.pace.ttl_s if plan.expires else None
    with context.recorder.operation("message.send", key=plan.key, to=plan.to, ttl=ttl) as record:
        sent = await context.mesh.messages.send(
            plan.to,
            {"key": plan.key},
            sender=inbox_of(context.who),
            ttl=ttl,
            max_attempts=plan.attempts,
            key=plan.key,
            ordered=plan.is_ordered,
        )
        record.ok(spooled=sent.state == MessageState.SPOOLED)


async def _store_unreadable(context: WorkloadContext, number: int) -> None:
    """Store a message that can't be passed on, as a hostile writer of the database would, now and then."""
    mesh, plan = context.mesh, _Plan.of(context, number)
    if rng_of(context.who, _DEEP, number).random() >= _UNREADABLE or mesh.incarnation is None:
        return
    message = Message(
        message_uuid=key_of(context.who, _DEEP, number),
        sender_agent=inbox_of(context.who),
        receiver_agent=plan.to,
        msg_type=_DEEP,
        payload=UNREADABLE_PAYLOAD,
        priority=1,
        thread_id=None,
        correlation_id=None,
        reply_to=None,
        expires_ms=None,
        ack_by_ms=None,
        max_attempts=20,
        hlc=str(mesh.clock.tick()),
        sender_node=mesh.identity.node_id,
        sender_incarnation=mesh.incarnation,
        traceparent=None,
    )
    signature = mesh.identity.key.sign(message.signed_text(*mesh.store.mesh_id))
    with suppress(MeshError):
        await mesh.store.write(send_script(message._replace(signature=signature), None))


async def _broadcast(context: WorkloadContext) -> None:
    with context.recorder.operation("message.broadcast") as record:
        ttl = 2 * context.pace.ttl_s  # some recipients may never receive
        sent = await context.mesh.messages.broadcast({}, sender=inbox_of(context.who), ttl=ttl)
        spooled = [each.message_uuid for each in sent if each.state == MessageState.SPOOLED]
        record.ok(keys=[each.message_uuid for each in sent], spooled=spooled)


# --- receiving ------------------------------------------------------------------------------------


class _Receiver:
    """Receive from the node's own inbox and the shared one. With `drains`, acknowledge everything."""

    def __init__(self, context: WorkloadContext, *, drains: bool = False) -> None:
        self._context = context
        self._drains = drains
        self._kept: list[Message] = []
        self._queued: list[tuple[OperationRecord, ExitStack]] = []

    async def run(self) -> None:
        """Receive until cancelled."""
        context = self._context
        while True:
            inbox = context.mesh.messages.receive(
                inbox_of(context.who), roles=[_ROLE], lease=context.pace.ttl_s
            )
            try:
                with suppress(MeshError):
                    async with aclosing(inbox) as coming:
                        async for message in coming:
                            await self._take(message)
                            if context.rng.random() < _CONFIRMS:
                                await self._confirm()
            finally:
                self._end_acks(spooled=True)
            await asyncio.sleep(context.pace.tick_s)

    async def _take(self, message: Message) -> None:
        context, rng = self._context, self._context.rng
        context.recorder.note("message.handed", **_about(message), now_ms=context.mesh.clock.now_ms)
        if self._drains:
            await self._ack(message)
            return
        await asyncio.sleep(context.pace.rest_s * rng.random() / 4)
        way = rng.random()
        if way < _GIVES_BACK:
            await self._give_back(message)
        elif way < _GIVES_BACK + _KEEPS:
            self._kept.append(message)  # acknowledged later, perhaps too late
            return
        else:
            if message.reply_to is None and rng.random() < _REPLIES:
                await self._reply(message)
            await self._ack(message)
        while self._kept:
            await self._ack(self._kept.pop())

    async def _ack(self, message: Message) -> None:
        """Acknowledge a message. The operation of a queued ack ends when it is confirmed."""
        rng = rng_of(self._context.who, f"ack {message.message_uuid}", message.delivery_attempts)
        durable = self._drains or rng.random() < _WAITS
        with ExitStack() as stack:
            record = stack.enter_context(self._context.recorder.operation("message.ack", **_about(message)))
            is_recorded = await self._context.mesh.messages.ack(message, durable=durable)
            if is_recorded or durable:
                record.ok(spooled=not is_recorded)
            else:
                self._queued.append((record, stack.pop_all()))

    async def _confirm(self) -> None:
        """Wait until the queued acks are recorded."""
        is_recorded = False
        try:
            is_recorded = await self._context.mesh.messages.wait_for_acks()
        finally:
            self._end_acks(spooled=not is_recorded)

    def _end_acks(self, *, spooled: bool) -> None:
        queued, self._queued = self._queued, []
        for record, stack in queued:
            record.ok(spooled=spooled)
            stack.close()

    async def _give_back(self, message: Message) -> None:
        with self._context.recorder.operation("message.nack", **_about(message)) as record:
            await self._context.mesh.messages.nack(message, retry_in=self._context.pace.rest_s)
            record.ok()

    async def _reply(self, message: Message) -> None:
        key = ulid.derive_ulid(message.message_uuid, f"{_REPLY} {self._context.who}")
        with self._context.recorder.operation("message.send", key=key, to=message.sender_agent) as record:
            sender = inbox_of(self._context.who)
            sent = await self._context.mesh.messages.reply(message, {"key": key}, sender=sender, key=key)
            record.ok(spooled=sent.state == MessageState.SPOOLED)


def _about(message: Message) -> dict[str, str | int | None]:
    return {
        "key": message.message_uuid,
        "owner": message.claim_owner,
        "expires_ms": message.expires_ms,
    }


# --- the end --------------------------------------------------------------------------------------


async def drain(context: WorkloadContext) -> None:
    """Acknowledge all remaining messages."""
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(_Receiver(context, drains=True).run())
        await settling.until(context, partial(_is_all_done, context))
        receiving.cancel()


async def _is_all_done(context: WorkloadContext) -> bool:
    """Return whether no message is left. Expired messages are not handed out, so this order of queries misses
    none."""
    queries, inboxes = context.mesh.messages.queries, (inbox_of(context.who), CREW)
    if await queries.peek(inboxes, limit=1):
        return False
    for state in (MessageState.DELIVERED, MessageState.STORED):
        for inbox in inboxes:
            if await queries.listed(receiver=inbox, state=state, limit=1):
                return False
    return True


MESSAGES: Final = FunctionWorkload("messages", run, drain)
