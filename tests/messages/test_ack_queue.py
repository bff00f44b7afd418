"""Acks in a loop: queued, written together and with the next claim; none is lost or goes unnoticed."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.messages.messaging import PATIENCE_S, change, found, next_of, settled
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Message
from vox_mesh.errors import NoAnswer, NotHolder, Unreachable
from vox_mesh.messages import ack_queue, receive_loops
from vox_mesh.node import MeshNode
from vox_mesh.store.write.breaker import Breaker

_MANY = 40


async def _send(node: MeshNode, count: int, sender: str = "a") -> list[Message]:
    return [await node.messages.send("z", number, sender=sender) for number in range(count)]


async def _states(node: MeshNode, messages: list[Message]) -> set[str]:
    return {(await found(node, each)).state for each in messages}


async def test_a_loop_gets_all_messages_in_order_and_has_acknowledged_them_at_its_end(
    any_node: MeshNode,
) -> None:
    sent = await _send(any_node, _MANY)
    said: list[int] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(any_node.messages.receive("z")) as receiving:
        async for message in receiving:
            assert await any_node.messages.ack(message) is False
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
            await node.messages.ack(message)
            message = await next_of(receiving)
        await node.messages.ack(message, durable=True)
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
        await node.messages.ack(message)
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
    await local.messages.ack(message)
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
        await node.messages.ack(message)
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
    await local.messages.ack(message)
    with pytest.raises(NotHolder):
        await receiving.aclose()


async def test_an_ack_that_fails_after_its_loop_was_left_is_raised_by_waiting_for_it(
    local: MeshNode, caplog: pytest.LogCaptureFixture
) -> None:
    sent = await _send(local, 1)
    async for message in local.messages.receive("z"):
        await change(local, sent, claim_owner="another", claim_until_ms=2**52)
        await local.messages.ack(message)
        break
    await settled(local)
    with pytest.raises(NotHolder):
        await local.messages.wait_for_acks()
    assert await local.messages.wait_for_acks(), "it is raised once"
    assert "acks failed: count=1" in caplog.text


async def test_the_failure_of_an_open_loop_is_left_to_its_next_step(local: MeshNode) -> None:
    sent = await _send(local, 1)
    receiving = local.messages.receive("z")
    message = await next_of(receiving)
    await change(local, sent, claim_owner="another", claim_until_ms=2**52)
    await local.messages.ack(message)
    assert not await local.messages.wait_for_acks(), "not all are recorded"
    with pytest.raises(NotHolder):
        await next_of(receiving)
    with pytest.raises(StopAsyncIteration):
        await next_of(receiving)
    await receiving.aclose()


async def test_acks_outside_of_a_loop_are_waited_for(local: MeshNode) -> None:
    sent = await _send(local, 2)
    first, second = await local.messages.inbox("z")
    await change(local, sent[1:], claim_owner="another", claim_until_ms=2**52)
    assert await local.messages.ack(first)
    with pytest.raises(NotHolder):
        await local.messages.ack(second)
    assert await _states(local, sent[:1]) == {"acked"}


async def test_a_second_ack_of_a_message_waits_for_the_first(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 1)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        assert not await node.messages.ack(message)
        assert await node.messages.ack(message)
        assert await _states(node, sent) == {"acked"}
        await receiving.aclose()


async def test_a_durable_ack_in_a_loop_is_recorded_with_those_queued_before(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 2)
        receiving = node.messages.receive("z")
        first = await next_of(receiving)
        await settled(node)
        before = len(there.gate.batches)
        await node.messages.ack(first)
        assert await node.messages.ack(await next_of(receiving), durable=True)
        assert len(there.gate.batches) - before == 1
        assert await _states(node, sent) == {"acked"}
        await receiving.aclose()


async def test_a_loop_left_by_break_writes_its_acks_and_releases_the_rest(local: MeshNode) -> None:
    sent = await _send(local, 3)
    async for message in local.messages.receive("z"):
        await local.messages.ack(message)
        break
    assert await local.messages.wait_for_acks()
    await settled(local)
    states = [(await found(local, each)).state for each in sent]
    assert states == ["acked", "stored", "stored"]


async def test_a_loop_left_by_an_exception_has_written_its_acks(local: MeshNode) -> None:
    sent = await _send(local, 2)

    async def fail() -> None:
        async with aclosing(local.messages.receive("z")) as receiving:
            async for message in receiving:
                await local.messages.ack(message)
                raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await _states(local, sent[:1]) == {"acked"}


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting", "handling"])
async def test_a_cancelled_loop_has_written_its_acks(local: MeshNode, is_waiting: bool) -> None:
    sent = await _send(local, 1)
    is_acked = asyncio.Event()

    async def handle() -> None:
        async with aclosing(local.messages.receive("z")) as receiving:
            async for message in receiving:
                await local.messages.ack(message)
                is_acked.set()
                if not is_waiting:
                    await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await is_acked.wait()
    handling.cancel()
    await asyncio.wait([handling])
    assert handling.cancelled()
    assert await _states(local, sent) == {"acked"}


async def test_the_cancellation_of_a_loop_is_not_replaced_by_the_failure_of_an_ack(local: MeshNode) -> None:
    sent = await _send(local, 1)
    is_acked = asyncio.Event()

    async def handle() -> None:
        async with aclosing(local.messages.receive("z")) as receiving:
            async for message in receiving:
                await change(local, sent, claim_owner="another", claim_until_ms=2**52)
                await local.messages.ack(message)
                is_acked.set()
                await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await is_acked.wait()
    handling.cancel()
    await asyncio.wait([handling])
    assert handling.cancelled()
    with pytest.raises(NotHolder):
        await local.messages.wait_for_acks()


async def test_the_end_of_a_loop_waits_for_its_acks_within_a_time(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_loops, "_CLOSE_TIMEOUT_S", 0.01)
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 1)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        there.gate.hold()
        await node.messages.ack(message)
        with pytest.raises(NoAnswer, match="1 are under way"):
            await receiving.aclose()
        there.gate.release()
        assert await node.messages.wait_for_acks()
        assert await _states(node, sent) == {"acked"}


async def test_a_failure_says_which_of_two_loops_it_is_of(local: MeshNode) -> None:
    lost = await _send(local, 1)
    await local.messages.send("y", "kept", sender="a")
    losing, keeping = local.messages.receive("z"), local.messages.receive("y")
    message = await next_of(losing)
    await change(local, lost, claim_owner="another", claim_until_ms=2**52)
    await local.messages.ack(message)
    await local.messages.ack(await next_of(keeping))
    await keeping.aclose()
    with pytest.raises(NotHolder):
        await losing.aclose()


async def test_acks_queued_while_the_breaker_is_open_are_in_the_spool_until_it_is_replayed(
    there: RestartableNodes, tmp_path: Path
) -> None:
    breaker = Breaker(time.monotonic, reset_timeout_s=0.02)
    async with there.node(spool=tmp_path / "spool.db", breaker=breaker) as node:
        await node.run_once()
        sent = await _send(node, 3)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        there.gate.before.extend(Unreachable("it is away") for _ in range(10_000))
        for _ in sent[1:]:
            await node.messages.ack(message)
            both = [node.messages.wait_for_acks() for _ in range(2)]  # as two loops do
            assert await asyncio.gather(*both) == [False, False], "no ack is reported as recorded"
            message = await next_of(receiving)
        await node.messages.ack(message)
        await receiving.aclose()
        there.gate.before.clear()
        async with asyncio.timeout(PATIENCE_S):
            while node.store.is_spooling:
                await node.store.drained()
        assert await _states(node, sent) == {"acked"}


async def test_a_node_that_stops_has_written_its_acks(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 3)
        receiving = node.messages.receive("z")
        for _ in sent:
            await node.messages.ack(await next_of(receiving))
        await node.messages.close()
        assert await _states(node, sent) == {"acked"}


async def test_an_ack_whose_lease_is_nearly_over_is_waited_for(local: MeshNode) -> None:
    sent = await _send(local, 2)
    receiving = local.messages.receive("z", lease=2)
    assert await local.messages.ack(await next_of(receiving))
    message = await next_of(receiving)
    await change(local, sent[1:], claim_owner="another", claim_until_ms=2**52)
    with pytest.raises(NotHolder):
        await local.messages.ack(message)
    await receiving.aclose()


async def test_no_more_acks_are_under_way_than_there_is_room_for(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_queue, "MAX_UNDER_WAY", 2)
    async with there.node() as node:
        await node.run_once()
        sent = await _send(node, 3)
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        there.gate.hold()
        await node.messages.ack(message)
        await node.messages.ack(await next_of(receiving))
        adding = asyncio.create_task(node.messages.ack(await next_of(receiving)))
        await there.gate.arrival()
        assert not adding.done()
        there.gate.release()
        await adding
        await receiving.aclose()
        assert await _states(node, sent) == {"acked"}
