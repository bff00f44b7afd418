"""Several consumers of one inbox, in each process and across all of them: each message is one consumer's."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

from proof.scene import Pace, Part, Scene
from proof.workloads import settling
from proof.workloads.messages import inbox_of
from proof.workloads.numbered import Numbers, key_of
from vox_mesh.errors import MeshError, NotHolder
from vox_mesh.model.messages import Message, MessageState

INBOX: Final = "proof-shared"
_CONSUMERS: Final = 2
"""In each process."""

_LEASES: Final = 10.0
_SENDS: Final = 0.5
_MOST_TOGETHER: Final = 3
_MESSAGE: Final = "shared message"


def lease_of(pace: Pace) -> float:
    """For how long a consumer claims: longer than anything may take on a healthy database."""
    return _LEASES * pace.ttl_s


async def act(scene: Scene) -> None:
    """Send to the inbox, and receive from it."""
    async with asyncio.TaskGroup() as group:
        consuming = [group.create_task(_Consumer(scene, each).run()) for each in range(1, _CONSUMERS + 1)]
        numbers = Numbers(scene)
        async for _ in scene.turns():
            if scene.chance.random() < _SENDS:
                count = scene.chance.randint(1, _MOST_TOGETHER)
                chosen = dict.fromkeys(numbers.next() for _ in range(count))
                await asyncio.gather(*(_send(scene, key_of(scene.who, _MESSAGE, each)) for each in chosen))
        for task in consuming:
            task.cancel()


async def _send(scene: Scene, key: str) -> None:
    with scene.recorder.deed("message.send", key=key, to=INBOX) as doing:
        sent = await scene.mesh.bus.send(INBOX, {"key": key}, sender=inbox_of(scene.who), key=key)
        doing.ok(spooled=sent.state == MessageState.SPOOLED)


class _Consumer:
    """One of the consumers: works on a message, and acknowledges it until it knows what came of that."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._scene = scene
        self._number = number
        self._lease_s = lease_of(scene.pace)

    async def run(self) -> None:
        """Receive until cancelled."""
        scene = self._scene
        while True:
            inbox = scene.mesh.bus.receive(INBOX, lease=self._lease_s)
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
                is_recorded = await scene.mesh.bus.ack(message)
            except MeshError as error:
                is_known = isinstance(error, NotHolder)
                raise
            doing.ok(spooled=not is_recorded)
        return is_known

    def _left_s(self, message: Message) -> float:
        """For how long it is this consumer's, as far as that can know."""
        if message.claim_until_ms is None:
            return self._lease_s
        return min(self._lease_s, (message.claim_until_ms - self._scene.mesh.clock.now_ms) / 1_000)

    def _about(self, message: Message) -> dict[str, Any]:
        return {"key": message.message_uuid, "owner": message.claim_owner, "consumer": self._number}


async def drain(scene: Scene) -> None:
    """Receive until nothing is left."""
    async with asyncio.TaskGroup() as group:
        consuming = group.create_task(_Consumer(scene, 0).run())
        await settling.until(scene, partial(_is_all_done, scene))
        consuming.cancel()


async def _is_all_done(scene: Scene) -> bool:
    letters = scene.mesh.bus.letters
    for state in (MessageState.STORED, MessageState.DELIVERED):
        if await letters.listed(receiver=INBOX, state=state, limit=1):
            return False
    return True


CONSUMERS: Final = Part("consumers", act, drain)
