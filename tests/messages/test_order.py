"""Order: each sender's messages one after another, of several senders the most urgent first."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.messages.messaging import (
    NodeGroup,
    bodies,
    change,
    come_due,
    found,
    ids,
    lapse,
    next_of,
    take,
)
from vox_mesh.errors import NotHolder
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode


async def test_a_senders_messages_come_in_the_order_they_were_sent(any_node: MeshNode) -> None:
    messages = any_node.messages
    for number in range(12):
        await messages.send("b", number, sender="a", priority=number % 4)
    receiving = messages.receive("b")
    assert bodies(await take(any_node, receiving, 12)) == list(range(12))
    await receiving.aclose()


async def test_messages_sent_at_once_come_in_the_order_of_their_senders_calls(node: MeshNode) -> None:
    async def send(sender: str) -> None:
        await asyncio.gather(*(node.messages.send("b", number, sender=sender) for number in range(20)))

    await asyncio.gather(*(send(sender) for sender in "xyz"))
    claimed = await node.messages.inbox("b")
    assert len(claimed) == 60
    for sender in "xyz":
        assert bodies(each for each in claimed if each.sender_agent == sender) == list(range(20))


async def test_of_several_senders_the_most_urgent_comes_first_then_the_earliest(node: MeshNode) -> None:
    for sender, priority in (("a", 1), ("b", 0), ("c", 3), ("d", 1), ("e", 3), ("f", 2)):
        await node.messages.send("z", sender, sender=sender, priority=priority)
    assert bodies(await node.messages.inbox("z")) == ["c", "e", "f", "a", "d", "b"]


async def test_an_urgent_message_does_not_overtake_its_own_senders_earlier_ones(node: MeshNode) -> None:
    for body, priority in (("first", 0), ("second", 3)):
        await node.messages.send("z", body, sender="a", priority=priority)
    await node.messages.send("z", "other", sender="b", priority=1)
    assert bodies(await node.messages.inbox("z")) == ["other", "first", "second"]


async def test_the_most_urgent_senders_are_claimed_first_when_not_all_fit(node: MeshNode) -> None:
    for number in range(6):
        await node.messages.send("z", number, sender=f"s{number}", priority=number % 4)
    assert bodies(await node.messages.inbox("z", limit=2)) == [3, 2]


async def test_a_pair_is_one_consumers_at_a_time(crowd: NodeGroup) -> None:
    one, other = await crowd.node("one"), await crowd.node("other")
    for number in range(3):
        await one.messages.send("z", number, sender="a")
    first = await one.messages.poll_inbox_from_db("z", limit=1)
    assert bodies(first) == [0]
    assert await other.messages.poll_inbox_from_db("z") == []
    assert (
        await one.messages.poll_inbox_from_db("z") == []
    )  # another claim of the same node is another consumer
    await other.messages.send("z", "of another pair", sender="b")
    assert bodies(await other.messages.poll_inbox_from_db("z")) == ["of another pair"]
    await one.messages.ack(*first)
    assert bodies(await other.messages.poll_inbox_from_db("z")) == [1, 2]


async def test_what_expires_in_use_keeps_its_pair_there(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", ttl=3_600)
    (held,) = await node.messages.inbox("z")
    await node.messages.send("z", 2, sender="a")
    await change(node, [sent], expires_ms=1)
    assert await node.messages.poll_inbox_from_db("z") == []
    await node.messages.ack(held)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [2]


async def test_a_message_given_back_holds_back_its_own_pair_only(node: MeshNode) -> None:
    for sender in "ab":
        for number in range(3):
            await node.messages.send("z", f"{sender}{number}", sender=sender)
    claimed = await node.messages.inbox("z")
    poison = next(each for each in claimed if each.body == "a1")
    await node.messages.ack(*(each for each in claimed if each.body in ("a0", "b0", "b1", "b2")))
    await node.messages.nack(poison, retry_in=3_600)
    await node.messages.send("z", "a3", sender="a")
    await node.messages.send("z", "b3", sender="b")
    assert bodies(await node.messages.poll_inbox_from_db("z")) == ["b3"]
    await come_due(node)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == ["a1", "a2", "a3"]


async def test_what_was_claimed_behind_one_given_back_is_no_longer_held(node: MeshNode) -> None:
    for number in range(3):
        await node.messages.send("z", number, sender="a")
    first, second, third = await node.messages.inbox("z")
    await node.messages.nack(first, retry_in=0)
    for message in (second, third):
        with pytest.raises(NotHolder):
            await node.messages.ack(message)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [0, 1, 2]


async def test_one_given_back_from_the_middle_leaves_those_before_it_held(node: MeshNode) -> None:
    for number in range(3):
        await node.messages.send("z", number, sender="a")
    first, second, _ = await node.messages.inbox("z")
    await node.messages.nack(second, retry_in=0)
    assert await node.messages.poll_inbox_from_db("z") == []  # the first is still worked on
    await node.messages.ack(first)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [1, 2]


async def test_a_message_that_comes_late_waits_for_those_in_use(crowd: NodeGroup) -> None:
    one, other = await crowd.node("one"), await crowd.node("other")
    late = await one.messages.send("z", "late", sender="a")
    await one.messages.send("z", "early", sender="a")
    await change(one, [late], ended_ms=1, state="dead")  # as if it were not there yet
    (held,) = await one.messages.poll_inbox_from_db("z")
    assert held.body == "early"
    await change(one, [late], ended_ms=None, state="stored")
    assert await other.messages.poll_inbox_from_db("z") == []
    await other.store.synced()
    assert not (await other.messages.claims.find_claimable(["z"])).is_free
    await one.messages.ack(held)
    assert bodies(await other.messages.poll_inbox_from_db("z")) == ["late"]


async def test_no_one_is_robbed_by_any_number_of_messages_that_come_late(node: MeshNode) -> None:
    late = [await node.messages.send("z", number, sender="a") for number in range(20)]
    await node.messages.send("z", "early", sender="a")
    await change(node, late, ended_ms=1, state="dead")
    (held,) = await node.messages.poll_inbox_from_db("z")
    await change(node, late, ended_ms=None, state="stored")
    assert held.message_uuid not in ids(await node.messages.poll_inbox_from_db("z"))
    await node.messages.ack(held)


async def test_a_dead_letter_sent_again_waits_for_those_in_use(node: MeshNode) -> None:
    poison = await node.messages.send("z", 1, sender="a", max_attempts=1)
    await node.messages.send("z", 2, sender="a")
    claimed = await node.messages.inbox("z", limit=1)
    await node.messages.nack(claimed[0])
    (held,) = await node.messages.poll_inbox_from_db("z")
    await node.messages.queries.retry(poison.message_uuid)
    assert await node.messages.poll_inbox_from_db("z") == []
    await lapse(node, held)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [1, 2]


async def test_a_loop_hands_out_a_pairs_next_message_when_the_last_is_settled(node: MeshNode) -> None:
    for number in range(2):
        await node.messages.send("z", f"a{number}", sender="a")
    await node.messages.send("z", "b0", sender="b")
    receiving = node.messages.receive("z")
    first, second = await next_of(receiving), await next_of(receiving)
    assert bodies([first, second]) == ["a0", "b0"]
    waiting = asyncio.create_task(next_of(receiving))
    await node.messages.ack(second)
    await node.messages.send("z", "c0", sender="c")
    third = await waiting
    assert third.body == "c0"  # and not a1
    waiting = asyncio.create_task(next_of(receiving))
    await node.messages.ack(first)
    assert (await waiting).body == "a1"
    await receiving.aclose()


async def test_a_loop_goes_on_with_other_pairs_while_one_is_held_back(node: MeshNode) -> None:
    for number in range(3):
        await node.messages.send("z", f"a{number}", sender="a")
    receiving = node.messages.receive("z")
    poison = await next_of(receiving)
    await node.messages.nack(poison, retry_in=3_600)
    for number in range(3):
        await node.messages.send("z", f"b{number}", sender="b")
    assert bodies(await take(node, receiving, 3)) == ["b0", "b1", "b2"]
    assert (await found(node, poison)).state == MessageState.STORED
    waiting = asyncio.create_task(take(node, receiving, 3))
    await come_due(node)
    assert bodies(await waiting) == ["a0", "a1", "a2"]
    await receiving.aclose()
