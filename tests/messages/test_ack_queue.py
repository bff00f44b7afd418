"""Acks that are not waited for: written together, with the next claim, and none is lost or goes unnoticed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.support.messages.messaging import PATIENCE_S, change, found, next_of, settled
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Message
from vox_mesh.errors import NotHolder
from vox_mesh.messages import ack_queue
from vox_mesh.node import MeshNode

_MANY = 40


async def _send(node: MeshNode, count: int, sender: str = "a") -> list[Message]:
    return [await node.messages.send("z", number, sender=sender) for number in range(count)]


async def _states(node: MeshNode, messages: list[Message]) -> set[str]:
    return {(await found(node, each)).state for each in messages}


async def test_a_loop_that_waits_for_no_ack_gets_all_messages_in_order(any_node: MeshNode) -> None:
    sent = await _send(any_node, _MANY)
    said: list[int] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(any_node.messages.receive("z")) as receiving:
        async for message in receiving:
            assert await any_node.messages.ack(message, queued=True) is False
            said.append(message.body)
            if len(said) == _MANY:
                break
    assert said == list(range(_MANY))
    assert await _states(any_node, sent) == {"acked"}
    assert await any_node.messages.poll_inbox_from_db("z") == []


async def test_acks_are_written_together_and_with_the_next_claim(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        await _send(node, _MANY)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        before = len(there.gate.batches)
        for _ in range(_MANY - 1):
            await node.messages.ack(message, queued=True)
            message = await next_of(receiving)
        await node.messages.ack(message)
        assert len(there.gate.batches) - before < _MANY / 2
        await receiving.aclose()


async def test_the_loop_goes_on_while_an_ack_is_under_way(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        first, second, *_ = await _send(node, 3)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        there.gate.hold()
        await node.messages.ack(message, queued=True)
        await there.gate.arrival()
        assert (await next_of(receiving)).message_uuid == second.message_uuid
        there.gate.release()
        await node.messages.wait_for_acks()
        assert (await found(node, first)).state == "acked"
        await receiving.aclose()


async def test_an_ack_that_fails_ends_the_loop_at_its_next_step(local: MeshNode) -> None:
    sent = await _send(local, 2)
    receiving = local.messages.receive("z")
    message = await next_of(receiving)
    await change(local, sent, claim_owner="another", claim_until_ms=2**52)
    await local.messages.ack(message, queued=True)
    await local.messages.claims.acks.wait_until_settled()
    with pytest.raises(NotHolder):
        await next_of(receiving)
    await local.messages.wait_for_acks()  # it is raised once


async def test_a_loop_that_waits_for_messages_is_woken_by_an_ack_that_fails(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 1)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        await change(node, sent, claim_owner="another", claim_until_ms=2**52)
        there.gate.hold()
        await node.messages.ack(message, queued=True)
        waiting = asyncio.create_task(next_of(receiving))
        await there.gate.arrival()
        there.gate.release()
        with pytest.raises(NotHolder):
            await waiting


async def test_an_ack_that_fails_is_raised_at_the_end_of_the_block(local: MeshNode) -> None:
    sent = await _send(local, 1)
    receiving = local.messages.receive("z")
    message = await next_of(receiving)
    await change(local, sent, claim_owner="another", claim_until_ms=2**52)
    await local.messages.ack(message, queued=True)
    with pytest.raises(NotHolder):
        await receiving.aclose()


async def test_an_ack_that_fails_outside_of_a_loop_is_raised_by_waiting_for_it(local: MeshNode) -> None:
    sent = await _send(local, 2)
    messages = await local.messages.inbox("z")
    await change(local, sent[1:], claim_owner="another", claim_until_ms=2**52)
    await local.messages.ack(*messages, queued=True)
    with pytest.raises(NotHolder):
        await local.messages.wait_for_acks()
    assert await _states(local, sent[:1]) == {"acked"}


async def test_an_ack_that_is_waited_for_is_not_recorded_before_those_that_are_not(
    there: RestartableNodes,
) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 2)
        first, second = await node.messages.inbox("z")
        await settled(node)
        before = len(there.gate.batches)
        await node.messages.ack(first, queued=True)
        assert await node.messages.ack(second)
        assert len(there.gate.batches) - before == 1
        assert await _states(node, sent) == {"acked"}


async def test_a_node_that_stops_has_written_its_acks(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 3)
        await node.messages.ack(*await node.messages.inbox("z"), queued=True)
        await node.messages.close()
        assert await _states(node, sent) == {"acked"}


async def test_an_ack_whose_lease_is_nearly_over_is_waited_for(local: MeshNode) -> None:
    sent = await _send(local, 1)
    (message,) = await local.messages.inbox("z", lease=2)
    await local.messages.ack(message, queued=True)
    assert await _states(local, sent) == {"acked"}
    await change(local, sent, state="delivered", acknowledged=0, ended_ms=None, claim_owner="another")
    with pytest.raises(NotHolder):
        await local.messages.ack(message, queued=True)


async def test_no_more_acks_are_under_way_than_there_is_room_for(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_queue, "MAX_UNDER_WAY", 2)
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 3)
        first, second, third = await node.messages.inbox("z")
        await settled(node)
        there.gate.hold()
        await node.messages.ack(first, second, queued=True)
        adding = asyncio.create_task(node.messages.ack(third, queued=True))
        await there.gate.arrival()
        assert not adding.done()
        there.gate.release()
        await adding
        await node.messages.wait_for_acks()
        assert await _states(node, sent) == {"acked"}
