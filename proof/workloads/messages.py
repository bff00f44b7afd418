"""Messages: sent singly and together, to one or to several, acknowledged, given back, or left to expire."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from proof.scene import Part, Scene
from proof.workloads import settling
from proof.workloads.numbered import Numbers, chance_of, key_of
from vox_mesh.errors import MeshError
from vox_mesh.model.base import ulid
from vox_mesh.model.messages.records import Message, MessageState

_ROLE: Final = "proof-crew"
CREW: Final = f"role:{_ROLE}"
"""The inbox that all players receive from, beside their own."""

_INBOX: Final = "proof-"
_MESSAGE: Final = "message"
_REPLY: Final = "reply"
_SENDS: Final = 0.4
_TOGETHER: Final = 0.2
_MOST_TOGETHER: Final = 4
_TO_CREW: Final = 0.4
_EXPIRES: Final = 0.2
_SOON_DEAD: Final = 0.1
_REPLIES: Final = 0.1
_BROADCASTS: Final = 0.03
_GIVES_BACK: Final = 0.1
_KEEPS: Final = 0.1


def inbox_of(who: str) -> str:
    """Under which name a player sends and receives."""
    return f"{_INBOX}{who}"


def is_received(inbox: str) -> bool:
    """Whether a player receives from an inbox; what is for everyone may be for others, too."""
    return inbox == CREW or inbox.startswith(_INBOX)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A message as its player means it, in each of its lives."""

    key: str
    to: str
    expires: bool
    attempts: int

    @classmethod
    def of(cls, scene: Scene, number: int) -> _Plan:
        chance = chance_of(scene.who, _MESSAGE, number)
        others = scene.others or scene.players
        to = CREW if chance.random() < _TO_CREW else inbox_of(chance.choice(others))
        expires, is_soon_dead = chance.random() < _EXPIRES, chance.random() < _SOON_DEAD
        return cls(key_of(scene.who, _MESSAGE, number), to, expires, 2 if is_soon_dead else 20)


async def act(scene: Scene) -> None:
    """Send, and receive what others send."""
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(_Receiver(scene).run())
        await _send_all_the_time(scene)
        receiving.cancel()


# --- sending --------------------------------------------------------------------------------------


async def _send_all_the_time(scene: Scene) -> None:
    numbers = Numbers(scene)
    async for _ in scene.turns():
        if scene.chance.random() > _SENDS:
            continue
        is_several = scene.chance.random() < _TOGETHER
        count = scene.chance.randint(2, _MOST_TOGETHER) if is_several else 1
        chosen = dict.fromkeys(numbers.next() for _ in range(count))
        await asyncio.gather(*(_send(scene, _Plan.of(scene, each)) for each in chosen))
        if scene.chance.random() < _BROADCASTS:
            await _broadcast(scene)


async def _send(scene: Scene, plan: _Plan) -> None:
    ttl = scene.pace.ttl_s if plan.expires else None
    with scene.recorder.deed("message.send", key=plan.key, to=plan.to, ttl=ttl) as doing:
        sent = await scene.mesh.messages.send(
            plan.to,
            {"key": plan.key},
            sender=inbox_of(scene.who),
            ttl=ttl,
            max_attempts=plan.attempts,
            key=plan.key,
        )
        doing.ok(spooled=sent.state == MessageState.SPOOLED)


async def _broadcast(scene: Scene) -> None:
    with scene.recorder.deed("message.broadcast") as doing:
        ttl = 2 * scene.pace.ttl_s  # some of them may be for agents that never look
        sent = await scene.mesh.messages.broadcast({}, sender=inbox_of(scene.who), ttl=ttl)
        spooled = [each.message_uuid for each in sent if each.state == MessageState.SPOOLED]
        doing.ok(keys=[each.message_uuid for each in sent], spooled=spooled)


# --- receiving ------------------------------------------------------------------------------------


class _Receiver:
    """Receives from its player's inbox and the crew's. To drain them is to acknowledge all that comes."""

    def __init__(self, scene: Scene, *, drains: bool = False) -> None:
        self._scene = scene
        self._drains = drains
        self._kept: list[Message] = []

    async def run(self) -> None:
        """Receive until cancelled."""
        scene = self._scene
        while True:
            inbox = scene.mesh.messages.receive(inbox_of(scene.who), roles=[_ROLE], lease=scene.pace.ttl_s)
            with suppress(MeshError):
                async with aclosing(inbox) as coming:
                    async for message in coming:
                        await self._take(message)
            await asyncio.sleep(scene.pace.tick_s)

    async def _take(self, message: Message) -> None:
        scene, chance = self._scene, self._scene.chance
        scene.recorder.note("message.handed", **_about(message), now_ms=scene.mesh.clock.now_ms)
        if self._drains:
            await self._ack(message)
            return
        await asyncio.sleep(scene.pace.rest_s * chance.random() / 4)
        way = chance.random()
        if way < _GIVES_BACK:
            await self._give_back(message)
        elif way < _GIVES_BACK + _KEEPS:
            self._kept.append(message)  # its acknowledgement comes late, perhaps too late
            return
        else:
            if message.reply_to is None and chance.random() < _REPLIES:
                await self._reply(message)
            await self._ack(message)
        while self._kept:
            await self._ack(self._kept.pop())

    async def _ack(self, message: Message) -> None:
        with self._scene.recorder.deed("message.ack", **_about(message)) as doing:
            is_recorded = await self._scene.mesh.messages.ack(message)
            doing.ok(spooled=not is_recorded)

    async def _give_back(self, message: Message) -> None:
        with self._scene.recorder.deed("message.nack", **_about(message)) as doing:
            await self._scene.mesh.messages.nack(message, retry_in=self._scene.pace.rest_s)
            doing.ok()

    async def _reply(self, message: Message) -> None:
        key = ulid.derive_ulid(message.message_uuid, f"{_REPLY} {self._scene.who}")
        with self._scene.recorder.deed("message.send", key=key, to=message.sender_agent) as doing:
            sender = inbox_of(self._scene.who)
            sent = await self._scene.mesh.messages.reply(message, {"key": key}, sender=sender, key=key)
            doing.ok(spooled=sent.state == MessageState.SPOOLED)


def _about(message: Message) -> dict[str, str | int | None]:
    return {
        "key": message.message_uuid,
        "owner": message.claim_owner,
        "expires_ms": message.expires_ms,
    }


# --- the end --------------------------------------------------------------------------------------


async def drain(scene: Scene) -> None:
    """Acknowledge all that is left."""
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(_Receiver(scene, drains=True).run())
        await settling.until(scene, partial(_is_all_done, scene))
        receiving.cancel()


async def _is_all_done(scene: Scene) -> bool:
    """Of those that have expired none is handed out any more, so that in this order no query misses one."""
    letters, inboxes = scene.mesh.messages.queries, (inbox_of(scene.who), CREW)
    if await letters.peek(inboxes, limit=1):
        return False
    for state in (MessageState.DELIVERED, MessageState.STORED):
        for inbox in inboxes:
            if await letters.listed(receiver=inbox, state=state, limit=1):
                return False
    return True


MESSAGES: Final = Part("messages", act, drain)
