"""Queries: what lies in the inboxes, for those who look without receiving."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.messages.messaging import PATIENCE_S, bodies, found, ids
from vox_mesh.errors import BadValue
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode


async def test_looking_claims_nothing_and_goes_on_from_a_position(any_node: MeshNode) -> None:
    queries = any_node.messages.queries
    for number in range(5):
        await any_node.messages.send("z", number, sender="a", priority=number % 4)
    first = await queries.peek(["z"], limit=2)
    assert bodies(first) == [0, 1]
    rest = await queries.peek(["z"], after=first[-1].position)
    assert bodies(rest) == [2, 3, 4]
    assert await queries.peek(["z"], after=rest[-1].position) == []
    assert {each.state for each in (*first, *rest)} == {MessageState.STORED}
    assert bodies(await any_node.messages.inbox("z")) == [0, 1, 2, 3, 4]  # in spite of all that looking


async def test_what_is_held_is_seen_and_what_has_ended_is_not(node: MeshNode) -> None:
    for number in range(3):
        await node.messages.send("z", number, sender=f"s{number}")
    await node.messages.send("role:r", "role", sender="a")
    await node.messages.send("y", "other", sender="a")
    held = await node.messages.inbox("z")
    await node.messages.ack(held[0])
    seen = await node.messages.queries.peek(["z", "role:r"])
    assert bodies(seen) == [1, 2, "role"]
    assert [each.state for each in seen] == ["delivered", "delivered", "stored"]


async def test_following_shows_each_message_once_as_it_comes(node: MeshNode) -> None:
    await node.messages.send("z", 0, sender="a")
    following = node.messages.queries.follow(["z"])
    for number in range(1, 4):
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(following)).body == number - 1
        await node.messages.send("z", number, sender="a")
    await following.aclose()


async def test_messages_are_listed_by_what_they_are(node: MeshNode) -> None:
    await node.messages.send("z", 0, sender="a", thread="t")
    await node.messages.send("y", 1, sender="a")
    await node.messages.send("z", 2, sender="b", thread="t")
    await node.messages.ack(*await node.messages.inbox("y"))
    queries = node.messages.queries
    assert bodies(await queries.listed()) == [2, 1, 0]
    assert bodies(await queries.listed(limit=2)) == [2, 1]
    (newest, *_) = await queries.listed()
    assert bodies(await queries.listed(before=newest.position)) == [1, 0]
    assert bodies(await queries.listed(state="acked")) == [1]
    assert bodies(await queries.listed(sender="a")) == [1, 0]
    assert bodies(await queries.listed(receiver="z")) == [2, 0]
    assert bodies(await queries.listed(thread="t")) == [2, 0]
    assert bodies(await queries.listed(thread="t", sender="b", state="stored")) == [2]
    assert await queries.listed(state="dead") == []


async def test_a_message_is_found_by_the_beginning_of_its_id(node: MeshNode) -> None:
    sent = [await node.messages.send("z", number, sender="a") for number in range(2)]
    first, second = ids(sent)
    queries = node.messages.queries
    for beginning in (first, first.lower()):
        one = await queries.find(beginning)
        assert one is not None
        assert one.body == 0
    other = await queries.find(second[:-1]) if first[:-1] != second[:-1] else await queries.find(second)
    assert other is not None
    with pytest.raises(BadValue, match="ambiguous"):
        await queries.find(first[:4])
    assert await queries.find("7ZZZZZZZZZZZZZZZZZZZZZZZZZ") is None


async def test_threads_tell_how_many_belong_together_and_are_open(node: MeshNode) -> None:
    for number in range(3):
        await node.messages.send("z", number, sender="a", thread="long")
    await node.messages.send("y", "x", sender="a", thread="short")
    await node.messages.send("y", "x", sender="a")
    held = await node.messages.inbox("z")
    await node.messages.ack(held[0])
    threads = await node.messages.queries.threads()
    assert [(each.thread_id, each.messages, each.open) for each in threads] == [
        ("short", 1, 1),
        ("long", 3, 2),
    ]
    assert threads[1].began_at <= threads[1].last_at
    assert [each.thread_id for each in await node.messages.queries.threads(limit=1)] == ["short"]


async def test_each_state_is_counted(node: MeshNode) -> None:
    assert await node.messages.queries.counts() == {}
    for number in range(4):
        await node.messages.send("z", number, sender=f"s{number}", max_attempts=1)
    acked, dead, _ = await node.messages.inbox("z", limit=3)
    await node.messages.ack(acked)
    await node.messages.nack(dead)
    assert await node.messages.queries.counts() == {"acked": 1, "dead": 1, "delivered": 1, "stored": 1}
    assert (await found(node, dead)).state == MessageState.DEAD
