"""Several consumers of one inbox: each message goes to one consumer.

All processes receive from one shared inbox. Each process also has its own inbox: it leases that one, and may
hand out relayed messages while it cannot reach the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from proof.workload import FunctionWorkload, Pace, WorkloadContext
from proof.workloads import settling
from proof.workloads.messages import inbox_of
from proof.workloads.numbered import Numbers, key_of, rng_of
from vox_mesh.errors import MeshError, NotHolder
from vox_mesh.model.messages.records import Message, MessageState

INBOX: Final = "proof-shared"
"""The inbox that all processes receive from."""

PACE_NOTE: Final = "consumers.pace"
"""The note of the pace in a run with consumers."""

_OWN: Final = "proof-own-"
_CONSUMERS: Final = 2
"""Of each inbox, in each process."""

_LEASES: Final = 10.0
_SENDS: Final = 0.5
_TO_OWN: Final = 0.3
_REJECTS: Final = 0.2
_MOST_TOGETHER: Final = 3
_IN_A_ROW: Final = 10
_MESSAGE: Final = "shared message"


def lease_of(pace: Pace) -> float:
    """Return the lease of a claim: longer than any operation takes on a healthy database."""
    return _LEASES * pace.ttl_s


def is_consumed(inbox: str) -> bool:
    """Return whether consumers of this workload receive from an inbox."""
    return inbox == INBOX or inbox.startswith(_OWN)


def _own_inbox(who: str) -> str:
    return f"{_OWN}{who}"


async def run(context: WorkloadContext) -> None:
    """Send to the inboxes, and receive from them."""
    context.recorder.note(PACE_NOTE, **asdict(context.pace))
    async with asyncio.TaskGroup() as group:
        shared = [_Consumer(context, INBOX, each) for each in range(1, _CONSUMERS + 1)]
        own = [
            _Consumer(context, _own_inbox(context.who), _CONSUMERS + each)
            for each in range(1, _CONSUMERS + 1)
        ]
        consuming = [group.create_task(consumer.run()) for consumer in (*shared, *own)]
        numbers = Numbers(context)
        async for _ in context.rounds():
            if context.rng.random() < _SENDS:
                count = context.rng.randint(1, _MOST_TOGETHER)
                select_kinds = dict.fromkeys(numbers.next() for _ in range(count))
                await asyncio.gather(*(_send(context, each) for each in select_kinds))
        for task in consuming:
            task.cancel()


async def _send(context: WorkloadContext, number: int) -> None:
    key, to = key_of(context.who, _MESSAGE, number), _receiver_of(context, number)
    with context.recorder.operation("message.send", key=key, to=to) as record:
        sent = await context.mesh.messages.send(to, {"key": key}, sender=inbox_of(context.who), key=key)
        record.ok(spooled=sent.state == MessageState.SPOOLED)


def _receiver_of(context: WorkloadContext, number: int) -> str:
    """Return the inbox of a message: the same for several numbers in a row, so that batches build up."""
    rng = rng_of(context.who, _MESSAGE, number // _IN_A_ROW)
    return _own_inbox(rng.choice(context.others or context.nodes)) if rng.random() < _TO_OWN else INBOX


class _Consumer:
    """One consumer: it processes a message, and acknowledges it until the outcome is known."""

    def __init__(self, context: WorkloadContext, inbox: str, number: int, *, drains: bool = False) -> None:
        self._context = context
        self._inbox = inbox
        self._drains = drains
        self._number = number
        self._lease_s = lease_of(context.pace)

    async def run(self) -> None:
        """Receive until cancelled."""
        context = self._context
        while True:
            inbox = context.mesh.messages.receive(self._inbox, lease=self._lease_s)
            with suppress(MeshError):
                async with aclosing(inbox) as coming:
                    async for message in coming:
                        await self._take(message)
            await asyncio.sleep(context.pace.tick_s)

    async def _take(self, message: Message) -> None:
        context, about = self._context, self._about(message)
        context.recorder.note(
            "message.handed",
            **about,
            expires_ms=message.expires_ms,
            now_ms=context.mesh.clock.now_ms,
            left_s=self._left_s(message),
        )
        try:
            await asyncio.sleep(context.pace.rest_s * context.rng.random() / 4)
            rejects = not self._drains and context.rng.random() < _REJECTS
            if not (rejects and await self._reject(message, about)):
                await self._acknowledge(message, about)
        finally:
            context.recorder.note("message.let_go", **about)

    async def _acknowledge(self, message: Message, about: dict[str, Any]) -> None:
        until = self._context.recorder.now() + self._lease_s
        while not await self._ack(message, about) and self._context.recorder.now() < until:
            await self._context.rest(self._context.pace.rest_s)

    async def _ack(self, message: Message, about: dict[str, Any]) -> bool:
        """Acknowledge a message; return whether the outcome is known."""
        context, is_known = self._context, True
        with context.recorder.operation("message.ack", **about) as record:
            try:
                is_recorded = await context.mesh.messages.ack(message, durable=True)
            except MeshError as error:
                is_known = isinstance(error, NotHolder)
                raise
            record.ok(spooled=not is_recorded)
        return is_known

    async def _reject(self, message: Message, about: dict[str, Any]) -> bool:
        """Reject it; return whether that succeeded."""
        is_rejected = False
        with self._context.recorder.operation("message.nack", **about) as record:
            await self._context.mesh.messages.nack(message, retry_in=0)
            is_rejected = True
            record.ok()
        return is_rejected

    def _left_s(self, message: Message) -> float:
        """Return the seconds left of the claim, as far as this consumer knows."""
        if message.claim_until_ms is None:
            return self._lease_s
        return min(self._lease_s, (message.claim_until_ms - self._context.mesh.clock.now_ms) / 1_000)

    def _about(self, message: Message) -> dict[str, Any]:
        return {"key": message.message_uuid, "owner": message.claim_owner, "consumer": self._number}


async def drain(context: WorkloadContext) -> None:
    """Receive until nothing is left."""
    inboxes = (INBOX, _own_inbox(context.who))
    async with asyncio.TaskGroup() as group:
        consuming = [
            group.create_task(_Consumer(context, inbox, -number, drains=True).run())
            for number, inbox in enumerate(inboxes)
        ]
        await settling.until(context, partial(_is_all_done, context, inboxes))
        for task in consuming:
            task.cancel()


async def _is_all_done(context: WorkloadContext, inboxes: Sequence[str]) -> bool:
    queries = context.mesh.messages.queries
    for state in (MessageState.STORED, MessageState.DELIVERED):
        for inbox in inboxes:
            if await queries.listed(receiver=inbox, state=state, limit=1):
                return False
    return True


CONSUMERS: Final = FunctionWorkload("consumers", run, drain)
