"""Several consumers of one inbox: each message is one consumer's.

One inbox is received from by all processes. Each process also has an inbox that it alone receives from: it
leases that, and may hand out relayed messages while it cannot reach the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from proof.scene import Pace, Part, Scene
from proof.workloads import settling
from proof.workloads.messages import inbox_of
from proof.workloads.numbered import Numbers, chance_of, key_of
from vox_mesh.errors import MeshError, NotHolder
from vox_mesh.model.messages.records import Message, MessageState

INBOX: Final = "proof-shared"
"""Received from by all processes."""

PACE_NOTE: Final = "consumers.pace"
"""What notes the pace of a play in which there are consumers."""

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
    """For how long a consumer claims: longer than anything may take on a healthy database."""
    return _LEASES * pace.ttl_s


def is_consumed(inbox: str) -> bool:
    """Whether the consumers of this workload receive from an inbox."""
    return inbox == INBOX or inbox.startswith(_OWN)


def _own_inbox(who: str) -> str:
    return f"{_OWN}{who}"


async def act(scene: Scene) -> None:
    """Send to the inboxes, and receive from them."""
    scene.recorder.note(PACE_NOTE, **asdict(scene.pace))
    async with asyncio.TaskGroup() as group:
        shared = [_Consumer(scene, INBOX, each) for each in range(1, _CONSUMERS + 1)]
        own = [
            _Consumer(scene, _own_inbox(scene.who), _CONSUMERS + each) for each in range(1, _CONSUMERS + 1)
        ]
        consuming = [group.create_task(consumer.run()) for consumer in (*shared, *own)]
        numbers = Numbers(scene)
        async for _ in scene.turns():
            if scene.chance.random() < _SENDS:
                count = scene.chance.randint(1, _MOST_TOGETHER)
                chosen = dict.fromkeys(numbers.next() for _ in range(count))
                await asyncio.gather(*(_send(scene, each) for each in chosen))
        for task in consuming:
            task.cancel()


async def _send(scene: Scene, number: int) -> None:
    key, to = key_of(scene.who, _MESSAGE, number), _receiver_of(scene, number)
    with scene.recorder.deed("message.send", key=key, to=to) as doing:
        sent = await scene.mesh.messages.send(to, {"key": key}, sender=inbox_of(scene.who), key=key)
        doing.ok(spooled=sent.state == MessageState.SPOOLED)


def _receiver_of(scene: Scene, number: int) -> str:
    """Return the inbox of a message: the same for several numbers in a row, so that batches build up."""
    chance = chance_of(scene.who, _MESSAGE, number // _IN_A_ROW)
    return _own_inbox(chance.choice(scene.others or scene.players)) if chance.random() < _TO_OWN else INBOX


class _Consumer:
    """One of the consumers: works on a message, and acknowledges it until it knows what came of that."""

    def __init__(self, scene: Scene, inbox: str, number: int, *, drains: bool = False) -> None:
        self._scene = scene
        self._inbox = inbox
        self._drains = drains
        self._number = number
        self._lease_s = lease_of(scene.pace)

    async def run(self) -> None:
        """Receive until cancelled."""
        scene = self._scene
        while True:
            inbox = scene.mesh.messages.receive(self._inbox, lease=self._lease_s)
            with suppress(MeshError):
                async with aclosing(inbox) as coming:
                    async for message in coming:
                        await self._take(message)
            await asyncio.sleep(scene.pace.tick_s)

    async def _take(self, message: Message) -> None:
        scene, about = self._scene, self._about(message)
        scene.recorder.note(
            "message.handed",
            **about,
            expires_ms=message.expires_ms,
            now_ms=scene.mesh.clock.now_ms,
            left_s=self._left_s(message),
        )
        try:
            await asyncio.sleep(scene.pace.rest_s * scene.chance.random() / 4)
            rejects = not self._drains and scene.chance.random() < _REJECTS
            if not (rejects and await self._reject(message, about)):
                await self._acknowledge(message, about)
        finally:
            scene.recorder.note("message.let_go", **about)

    async def _acknowledge(self, message: Message, about: dict[str, Any]) -> None:
        until = self._scene.recorder.now() + self._lease_s
        while not await self._ack(message, about) and self._scene.recorder.now() < until:
            await self._scene.rest(self._scene.pace.rest_s)

    async def _ack(self, message: Message, about: dict[str, Any]) -> bool:
        """Acknowledge it; whether it is known what came of that."""
        scene, is_known = self._scene, True
        with scene.recorder.deed("message.ack", **about) as doing:
            try:
                is_recorded = await scene.mesh.messages.ack(message)
            except MeshError as error:
                is_known = isinstance(error, NotHolder)
                raise
            doing.ok(spooled=not is_recorded)
        return is_known

    async def _reject(self, message: Message, about: dict[str, Any]) -> bool:
        """Reject it; return whether that succeeded."""
        is_rejected = False
        with self._scene.recorder.deed("message.nack", **about) as doing:
            await self._scene.mesh.messages.nack(message, retry_in=0)
            is_rejected = True
            doing.ok()
        return is_rejected

    def _left_s(self, message: Message) -> float:
        """For how long it is this consumer's, as far as that can know."""
        if message.claim_until_ms is None:
            return self._lease_s
        return min(self._lease_s, (message.claim_until_ms - self._scene.mesh.clock.now_ms) / 1_000)

    def _about(self, message: Message) -> dict[str, Any]:
        return {"key": message.message_uuid, "owner": message.claim_owner, "consumer": self._number}


async def drain(scene: Scene) -> None:
    """Receive until nothing is left."""
    inboxes = (INBOX, _own_inbox(scene.who))
    async with asyncio.TaskGroup() as group:
        consuming = [
            group.create_task(_Consumer(scene, inbox, -number, drains=True).run())
            for number, inbox in enumerate(inboxes)
        ]
        await settling.until(scene, partial(_is_all_done, scene, inboxes))
        for task in consuming:
            task.cancel()


async def _is_all_done(scene: Scene, inboxes: Sequence[str]) -> bool:
    letters = scene.mesh.messages.queries
    for state in (MessageState.STORED, MessageState.DELIVERED):
        for inbox in inboxes:
            if await letters.listed(receiver=inbox, state=state, limit=1):
                return False
    return True


CONSUMERS: Final = Part("consumers", act, drain)
