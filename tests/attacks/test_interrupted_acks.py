"""Acks that are cancelled, at any point, and their writer too: each is queued, or its message is released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.messages.messaging import PATIENCE_S, found, next_of, settled
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh import Message
from vox_mesh.errors import NoAnswer
from vox_mesh.messages import ack_queue, settlement
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database in memory, behind a gate."""
    async with scene() as there:
        yield there


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still: an ack lets no other task run, and so stays queued until the test waits."""
    return Clock()


@pytest.fixture
async def node(there: RestartableNodes, clock: Clock) -> AsyncIterator[MeshNode]:
    """A node on it."""
    async with there.node(dependencies=Dependencies(monotonic=clock)) as node:
        await node.run_once()
        yield node


async def _send(node: MeshNode, count: int) -> list[Message]:
    return [await node.messages.send("z", number, sender="a") for number in range(count)]


async def _states(node: MeshNode, messages: list[Message]) -> list[str]:
    return [(await found(node, each)).state for each in messages]


async def _all_recorded(node: MeshNode) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        return await node.messages.wait_for_acks()


async def _end(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([task])


def _cancel_background(node: MeshNode) -> None:
    for task in list(node.messages._background.running):
        task.cancel()


async def test_a_message_whose_ack_was_cancelled_while_it_waited_for_room_is_released(
    there: RestartableNodes, node: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_queue, "MAX_UNDER_WAY", 1)
    sent = await _send(node, 2)
    receiving = node.messages.receive("z")
    first = await next_of(receiving)
    await settled(node)
    there.gate.hold()
    is_handling = asyncio.Event()

    async def handle() -> None:
        await node.messages.ack(first)
        message = await next_of(receiving)
        is_handling.set()
        await node.messages.ack(message)

    handling = asyncio.create_task(handle())
    await is_handling.wait()
    handling.cancel()
    await _end(handling)
    assert handling.cancelled()
    there.gate.release()
    assert await _all_recorded(node)
    await settled(node)
    assert await _states(node, sent) == ["acked", "stored"]
    await receiving.aclose()


@pytest.mark.parametrize("when", ["before it starts", "while it writes"])
async def test_acks_whose_writer_was_cancelled_are_written_nevertheless(
    there: RestartableNodes, node: MeshNode, when: str
) -> None:
    sent = await _send(node, 1)
    receiving = node.messages.receive("z")
    message = await next_of(receiving)
    await settled(node)
    there.gate.hold()
    await node.messages.ack(message)
    if when == "while it writes":
        await there.gate.arrival()
    else:
        await asyncio.sleep(0)  # its task is created, and has not run
    _cancel_background(node)
    there.gate.release()
    assert await _all_recorded(node)
    assert await _states(node, sent) == ["acked"]
    await receiving.aclose()


async def test_late_acks_are_written_though_the_writer_was_cancelled_before_it_came_to_them(
    there: RestartableNodes, node: MeshNode, clock: Clock
) -> None:
    early = await _send(node, 1)
    late = [await node.messages.send("y", "late", sender="a")]
    receiving, hurrying = node.messages.receive("z"), node.messages.receive("y", lease=10)
    messages = [await next_of(each) for each in (receiving, hurrying)]
    await settled(node)
    there.gate.hold()
    await node.messages.ack(*messages)
    clock.now += 11  # by our clock the lease of the second is over, not by that of the database
    await there.gate.arrival()
    _cancel_background(node)
    there.gate.release()
    assert await _all_recorded(node)
    assert await _states(node, early + late) == ["acked", "acked"]
    await receiving.aclose()
    await hurrying.aclose()


@pytest.mark.parametrize("when", ["before it starts", "while it writes"])
async def test_a_node_ends_and_has_written_its_acks_though_their_writer_was_cancelled(
    there: RestartableNodes, node: MeshNode, when: str
) -> None:
    sent = await _send(node, 1)
    receiving = node.messages.receive("z")
    message = await next_of(receiving)
    await settled(node)
    there.gate.hold()
    await node.messages.ack(message)
    if when == "while it writes":
        await there.gate.arrival()
    closing = asyncio.create_task(node.messages.close())
    await asyncio.sleep(0)
    _cancel_background(node)
    there.gate.release()
    await _end(closing)
    assert await _states(node, sent) == ["acked"]


async def test_a_node_ends_in_time_though_its_acks_are_not_answered(
    there: RestartableNodes,
    node: MeshNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(settlement, "_CLOSE_TIMEOUT_S", 0.01)
    sent = await _send(node, 1)
    receiving = node.messages.receive("z")
    message = await next_of(receiving)
    await settled(node)
    there.gate.hold()
    await node.messages.ack(message)
    closing = asyncio.create_task(node.messages.close())
    assert not await _all_recorded(node)
    there.gate.release()
    await _end(closing)
    with pytest.raises(NoAnswer, match="when the mesh was closed"):
        await receiving.aclose()
    assert "acks failed: count=1" in caplog.text
    assert await _states(node, sent) == ["stored"], "its message is released"
