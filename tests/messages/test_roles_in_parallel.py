"""Roles are work queues: messages of one sender are handled in parallel, unless they are ordered."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode

_PATIENCE_S = 30.0


async def _claim(node: MeshNode, agent: str, limit: int = 256) -> list[Message]:
    return await node.messages.poll_inbox_from_db(agent, roles=["builder"], limit=limit)


async def test_messages_of_one_sender_go_to_several_consumers_at_once(node: MeshNode) -> None:
    for n in range(5):
        await node.messages.send("role:builder", n, sender="ann")
    first = await _claim(node, "ben", limit=2)
    second = await _claim(node, "cas")
    assert [each.body for each in first] == [0, 1]
    assert [each.body for each in second] == [2, 3, 4]
    assert {each.delivery_attempts for each in (*first, *second)} == {1}
    await node.messages.nack(second[0], retry_in=0)
    (again,) = await _claim(node, "ben")
    assert (again.body, again.delivery_attempts) == (2, 2), "only the rejected one is redelivered"
    assert await node.messages.ack(*first, *second[1:], again)


async def test_ordered_messages_of_one_sender_come_one_by_one(node: MeshNode) -> None:
    for n in range(4):
        await node.messages.send("role:builder", n, sender="ann", ordered=n % 2 == 0)
    (first,) = await _claim(node, "ben", limit=1)
    rest = await _claim(node, "cas")
    assert first.body == 0
    assert [each.body for each in rest] == [1, 3], "the second ordered one waits for the first"
    await node.messages.ack(first, *rest)
    (last,) = await _claim(node, "cas")
    assert last.body == 2
    await node.messages.ack(last)


async def test_consumers_that_wait_share_the_messages_of_one_sender(node: MeshNode) -> None:
    handling: dict[str, Message] = {}
    all_busy = asyncio.Event()

    async def consume(agent: str) -> None:
        async with aclosing(node.messages.receive(agent, roles=["builder"])) as messages:
            async for message in messages:
                handling[agent] = message
                if len(handling) == 3:
                    all_busy.set()
                await all_busy.wait()
                await node.messages.ack(message)
                return

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as consumers:
        for agent in ("ben", "cas", "dan"):
            consumers.create_task(consume(agent))
        for n in range(3):
            await node.messages.send("role:builder", n, sender="ann")
    assert sorted(each.body for each in handling.values()) == [0, 1, 2]
