"""Receiving: a loop that waits, claims a few, hands them out one by one, and keeps nothing from others."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, nullcontext

import pytest

from tests.support.messages.messaging import (
    PATIENCE_S,
    NodeGroup,
    bodies,
    change,
    found,
    lapse,
    next_of,
    settled,
    take,
)
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Message
from vox_mesh.errors import NotHolder, StoreClosed
from vox_mesh.messages.consumer import Consumer
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies

_LEASE_S = 100.0


async def send(node: MeshNode, senders: str, count: int = 1) -> None:
    """Have each of these senders send this many messages to z: a0, b0, …, a1, …"""
    for number in range(count):
        for sender in senders:
            await node.messages.send("z", f"{sender}{number}", sender=sender)


def consumer_of(node: MeshNode) -> Consumer:
    """The consumer behind the only loop."""
    (consumer,) = node.messages._consumers
    return consumer


async def until_looked(consumer: Consumer) -> None:
    """Wait until the consumer has looked for messages once more."""
    before = consumer._looked_at
    async with asyncio.timeout(PATIENCE_S):
        while consumer._looked_at == before:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def test_a_waiting_loop_is_given_what_is_sent(any_node: MeshNode) -> None:
    receiving = any_node.messages.receive("z")
    for number in range(3):
        waiting = asyncio.create_task(next_of(receiving))
        await asyncio.sleep(0)
        sent = await any_node.messages.send("z", number, sender="a")
        message = await waiting
        assert message.message_uuid == sent.message_uuid
        await any_node.messages.ack(message)
    await receiving.aclose()


async def test_a_loop_is_given_what_another_node_sends(crowd: NodeGroup) -> None:
    here, there = await crowd.node("here"), await crowd.node("there")
    receiving = here.messages.receive("z", roles=["reviewer"])
    waiting = asyncio.create_task(take(here, receiving, 2))
    await there.messages.send("z", 1, sender="a")
    await there.messages.send("role:reviewer", 2, sender="a")
    here.store._changes.bump()  # in memory no node hears of another's commits
    assert sorted(bodies(await waiting)) == [1, 2]
    await receiving.aclose()


async def test_a_loop_that_ends_early_gives_back_at_once_what_no_one_looked_at(node: MeshNode) -> None:
    await send(node, "abcd")
    async with aclosing(node.messages.receive("z")) as receiving:
        async for message in receiving:
            assert message.body == "a0"
            break
    await settled(node)
    left = await node.messages.poll_inbox_from_db("z")
    assert bodies(left) == ["b0", "c0", "d0"]
    assert [each.delivery_attempts for each in left] == [1, 1, 1]
    await node.messages.ack(message)  # it is still ours


async def test_a_loop_cancelled_while_it_claims_gives_back_what_it_was_not_notified_of(
    there: RestartableNodes,
) -> None:
    async with there.node() as node:
        await node.run_once()
        await send(node, "ab")
        receiving = node.messages.receive("z")
        await settled(node)
        there.gate.hold()
        asking = asyncio.create_task(anext(receiving))
        await there.gate.arrival()
        claim = there.gate.batches[-1]
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await there.gate.land(claim)  # no one is there any more to hear of it
        assert [each.state for each in await node.messages.queries.peek(["z"])] == ["delivered"] * 2
        there.gate.release()
        await settled(node)
        left = await node.messages.poll_inbox_from_db("z")
        assert [(each.body, each.delivery_attempts) for each in left] == [("a0", 1), ("b0", 1)]


async def test_a_loop_that_waits_ends_when_its_node_does_and_holds_nothing(node: MeshNode) -> None:
    await send(node, "a", 2)
    receiving = node.messages.receive("z")
    await next_of(receiving)
    waiting = asyncio.create_task(next_of(receiving))
    await asyncio.sleep(0)
    await node.messages.close()
    with pytest.raises(StoreClosed):
        await waiting
    assert [each.claim_until_ms for each in await node.messages.queries.peek(["z"])] == [None, None]


async def test_two_loops_of_a_process_share_the_messages(node: MeshNode) -> None:
    await send(node, "abcdef", 10)
    seen: Counter[str] = Counter()
    acked: list[Message] = []
    all_acked = asyncio.Event()
    order: dict[str, list[str]] = {}

    async def work() -> None:
        async for message in node.messages.receive("z", at_once=4):
            seen[message.message_uuid] += 1
            order.setdefault(message.sender_agent, []).append(message.body)
            await node.messages.ack(message)
            acked.append(message)
            if len(acked) == 60:
                all_acked.set()

    loops = [asyncio.create_task(work()) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        await all_acked.wait()
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    assert set(seen.values()) == {1}
    assert order == {sender: [f"{sender}{number}" for number in range(10)] for sender in "abcdef"}
    assert await node.messages.queries.counts() == {"acked": 60}


async def test_nothing_comes_twice_to_a_loop_that_acknowledges_and_nothing_is_kept_of_it(
    node: MeshNode,
) -> None:
    receiving = node.messages.receive("z")
    seen: Counter[str] = Counter()
    for _ in range(5):
        sending = asyncio.create_task(send(node, "abcd", 15))
        for message in await take(node, receiving, 60):
            seen[message.message_uuid] += 1
        await sending
    assert await node.messages.wait_for_acks()
    assert set(seen.values()) == {1}
    consumer = consumer_of(node)
    assert (consumer._prefetched, consumer._busy, consumer._counted) == ([], {}, set())
    assert node.messages.claims._handed_out == {}
    await receiving.aclose()


async def test_the_account_of_what_was_never_acknowledged_stays_small(there: RestartableNodes) -> None:
    clock = Clock()
    async with there.node("a", Dependencies(monotonic=clock)) as node:
        await node.run_once()
        sent = await node.messages.send("z", 1, sender="a")
        for number in range(20_000):
            clock.now += 0.1
            forgotten = sent._replace(message_uuid=str(number))
            node.messages.claims.hand_out(forgotten, clock.now + _LEASE_S)
        assert len(node.messages.claims._handed_out) <= 2 * 4_096


async def test_what_lies_too_long_with_someone_slow_is_given_back_and_not_counted(
    there: RestartableNodes,
) -> None:
    clock = Clock()
    async with there.node("a", Dependencies(monotonic=clock)) as node:
        await node.run_once()
        await send(node, "abc")
        receiving = node.messages.receive("z", lease=_LEASE_S)
        slow = await next_of(receiving)
        clock.now += 0.3 * _LEASE_S
        fresh = await next_of(receiving)
        assert (slow.body, fresh.body) == ("a0", "b0")
        assert fresh.claim_owner != slow.claim_owner  # it was claimed again, for a whole lease
        assert fresh.delivery_attempts == 1
        await node.messages.ack(slow)
        await receiving.aclose()


async def test_what_is_not_acknowledged_comes_again_to_the_same_loop(there: RestartableNodes) -> None:
    clock = Clock()
    async with there.node("a", Dependencies(monotonic=clock)) as node:
        await node.run_once()
        await send(node, "a", 2)
        receiving = node.messages.receive("z", lease=_LEASE_S)
        first = await next_of(receiving)
        clock.now += _LEASE_S
        await lapse(node, *await node.messages.queries.peek(["z"]))
        again = await next_of(receiving)
        assert (again.message_uuid, again.delivery_attempts) == (first.message_uuid, 2)
        with pytest.raises(NotHolder):
            await node.messages.ack(first)
        await node.messages.ack(again)
        assert (await next_of(receiving)).body == "a1"
        await receiving.aclose()


async def test_a_late_ack_does_not_make_way_for_the_next_of_the_pair(node: MeshNode) -> None:
    await send(node, "a", 2)
    (late,) = await node.messages.inbox("z", limit=1)
    await lapse(node, late)
    receiving = node.messages.receive("z")
    held = await next_of(receiving)
    assert held.message_uuid == late.message_uuid
    with pytest.raises(NotHolder):
        await node.messages.ack(late)
    await node.messages.send("z", "other", sender="b")
    assert (await next_of(receiving)).body == "other"  # and not a1: a0 is being worked on
    await receiving.aclose()


async def test_what_expires_behind_another_of_its_pair_is_not_handed_out(there: RestartableNodes) -> None:
    clock = Clock()
    async with there.node("a", Dependencies(monotonic=clock, elapsed=clock)) as node:
        await node.run_once()
        for body, ttl in (("first", None), ("short-lived", 3.0), ("last", None)):
            await node.messages.send("z", body, sender="a", ttl=ttl)
        receiving = node.messages.receive("z", lease=_LEASE_S)
        first = await next_of(receiving)
        assert "short-lived" in bodies(consumer_of(node)._prefetched)
        clock.now += 4
        await node.messages.ack(first)
        assert (await next_of(receiving)).body == "last"
        await receiving.aclose()


async def test_one_given_back_comes_again_when_its_time_comes_without_anybody_saying_so(
    node: MeshNode,
) -> None:
    await send(node, "a")
    receiving = node.messages.receive("z")
    first = await next_of(receiving)
    await node.messages.nack(first, retry_in=0.2)
    again = await next_of(receiving)
    assert (again.message_uuid, again.delivery_attempts) == (first.message_uuid, 2)
    row = await found(node, again)
    assert row.not_before_ms is None
    await receiving.aclose()


async def test_a_loop_with_nothing_to_claim_asks_the_database_for_nothing(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        await send(node, "a", 2)
        receiving = node.messages.receive("z")
        await node.messages.nack(await next_of(receiving), retry_in=3_600)
        waiting = asyncio.create_task(next_of(receiving))
        await until_looked(consumer_of(node))
        await settled(node)
        for _ in range(3):  # what the first look may still have to ask is asked
            node.store._changes.bump()
            await until_looked(consumer_of(node))
        asked = len(there.gate.batches)
        for _ in range(5):
            node.store._changes.bump()
            await until_looked(consumer_of(node))
        assert len(there.gate.batches) == asked
        waiting.cancel()


async def test_a_loop_finds_more_of_large_messages_than_a_server_answers_with(node: MeshNode) -> None:
    large = "x" * 250_000
    await asyncio.gather(*(node.messages.send("z", large, sender=f"s{n % 4}") for n in range(48)))
    claimed = await node.messages.inbox("z")
    assert 1 <= len(claimed) < 48
    await node.messages.ack(*claimed)
    receiving = node.messages.receive("z")
    rest = await take(node, receiving, 48 - len(claimed))
    assert {message.payload for message in rest} == {f'"{large}"'}
    await receiving.aclose()


async def test_waiting_for_an_ack_tells_how_a_message_ended(node: MeshNode) -> None:
    async def after(message: Message, deed: str) -> bool:
        waiting = asyncio.create_task(node.messages.wait_for_ack(message, PATIENCE_S))
        await asyncio.sleep(0)
        (held,) = await node.messages.poll_inbox_from_db("z")
        await (node.messages.ack(held) if deed == "ack" else node.messages.nack(held))
        return await waiting

    assert await after(await node.messages.send("z", 1, sender="a"), "ack")
    assert not await after(await node.messages.send("z", 2, sender="a", max_attempts=1), "nack")
    assert not await node.messages.wait_for_ack(await node.messages.send("z", 3, sender="a"), 0.01)


# --- nothing is stranded ------------------------------------------------------------------------------


async def test_what_was_claimed_with_a_lost_message_is_released_at_once(crowd: NodeGroup) -> None:
    here, there = await crowd.node("here"), await crowd.node("there")
    await send(here, "a", 3)
    receiving = here.messages.receive("z", lease=_LEASE_S)
    first = await next_of(receiving)
    await change(here, [first], claim_owner="another", claim_until_ms=1)
    with pytest.raises(NotHolder):
        await here.messages.ack(first, durable=True)
    left = await there.messages.poll_inbox_from_db("z")
    assert bodies(left) == ["a0", "a1", "a2"]
    assert [each.delivery_attempts for each in left] == [2, 1, 1]
    await receiving.aclose()


async def test_what_was_claimed_with_a_lost_message_is_released_when_that_is_given_back(
    node: MeshNode,
) -> None:
    await send(node, "a", 3)
    receiving = node.messages.receive("z", lease=_LEASE_S)
    first = await next_of(receiving)
    await change(node, [first], claim_owner="another", claim_until_ms=1)
    with pytest.raises(NotHolder):
        await node.messages.nack(first)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == ["a0", "a1", "a2"]
    await receiving.aclose()


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_message_whose_handler_is_cancelled_is_released_at_once(
    node: MeshNode, is_closed: bool
) -> None:
    await send(node, "a", 3)
    handling = asyncio.Event()

    async def handle() -> None:
        receiving = node.messages.receive("z", lease=_LEASE_S)
        async with aclosing(receiving) if is_closed else nullcontext(receiving):
            async for _ in receiving:
                handling.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(handle())
    await handling.wait()
    task.cancel()
    await asyncio.wait([task])
    await settled(node)
    left = await node.messages.poll_inbox_from_db("z")
    assert [(each.body, each.delivery_attempts) for each in left] == [("a0", 2), ("a1", 1), ("a2", 1)]


async def test_cancelled_while_it_gives_back_a_loop_strands_nothing(there: RestartableNodes) -> None:
    clock = Clock()
    async with there.node(dependencies=Dependencies(monotonic=clock)) as node:
        await node.run_once()
        await send(node, "a", 2)
        receiving = node.messages.receive("z", lease=_LEASE_S)
        first = await next_of(receiving)
        await settled(node)
        clock.now += _LEASE_S / 2
        there.gate.hold()
        asking = asyncio.create_task(anext(receiving))
        await there.gate.arrival()
        asking.cancel()
        there.gate.release()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await settled(node)
        (second,) = [each for each in await node.messages.queries.peek(["z"]) if each.body == "a1"]
        assert second.claim_until_ms is None
        await node.messages.ack(first)
