"""Acks that are interrupted: each is queued, or its message is released, and none fails unnoticed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue
from typing import Any, Final

import pytest

from tests.support.messages.messaging import PATIENCE_S, change, found, next_of, settled
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh import Message, Script, Statement, load_settings
from vox_mesh.errors import NoAnswer, NotHolder
from vox_mesh.messages import ack_queue, settlement
from vox_mesh.messages.ack_queue import AckQueue, AckVerdicts
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.sync import Mesh as BlockingMesh
from vox_mesh.sync import MeshNode as BlockingNode

_LOCK_TIMEOUT_S: Final = 5.0


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


@pytest.fixture
def blocking() -> Iterator[BlockingNode]:
    """A node in memory, without `await`."""
    with BlockingMesh.open(load_settings(_env_file=None)) as node:
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


@pytest.mark.parametrize("is_lost", [False, True], ids=["held", "lost"])
async def test_an_ack_while_the_mesh_closes_is_waited_for(
    there: RestartableNodes, node: MeshNode, is_lost: bool
) -> None:
    first, second = await _send(node, 2)
    receiving = node.messages.receive("z")
    message = await next_of(receiving)
    await settled(node)
    if is_lost:
        await change(node, [first], claim_owner="another", claim_until_ms=2**52)
    there.gate.hold()
    closing = asyncio.create_task(node.messages.close())
    await there.gate.arrival()  # the second message, which was not handed out, is being released
    acking = asyncio.create_task(node.messages.ack(message))
    await asyncio.sleep(0)
    there.gate.release()
    if is_lost:
        with pytest.raises(NotHolder):
            await acking
    else:
        assert await acking is True
        assert await _states(node, [first, second]) == ["acked", "stored"]
    await _end(closing)
    await receiving.aclose()


@pytest.mark.parametrize("is_with_claim", [True, False], ids=["with a claim", "by itself"])
async def test_a_loop_that_ends_with_the_mesh_raises_the_failure_of_its_ack(
    there: RestartableNodes, node: MeshNode, is_with_claim: bool
) -> None:
    (sent,) = await _send(node, 1)
    receiving = node.messages.receive("z")
    message = await next_of(receiving)
    await settled(node)
    await change(node, [sent], claim_owner="another", claim_until_ms=2**52)
    there.gate.hold()
    await node.messages.ack(message)
    if not is_with_claim:
        await there.gate.arrival()
    waiting = asyncio.create_task(next_of(receiving))
    if is_with_claim:
        await there.gate.arrival()
    closing = asyncio.create_task(node.messages.close())
    for _ in range(5):  # for the loop to see that
        await asyncio.sleep(0)
    there.gate.release()
    with pytest.raises(NotHolder):
        await waiting
    await _end(closing)


# --- waiting and failing --------------------------------------------------------------------------


class _Loop:
    """The consumer of a loop, as far as the queue knows it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.has_prefetched = False

    def mark_settled(self, message: Message) -> bool:
        """All is in progress."""
        return True


async def test_waiting_for_acks_is_for_those_queued_before_and_no_others(node: MeshNode) -> None:
    first, second = await _send(node, 2)
    queue, loop = AckQueue(Clock()), _Loop()
    queue.add([(first, loop)], may_linger=False)
    taken_first = queue.take()
    waiting = asyncio.create_task(queue.wait_until_settled())
    await asyncio.sleep(0)
    queue.add([(second, loop)], may_linger=False)
    queue.settle(queue.take(), AckVerdicts({}))
    for _ in range(5):  # for the waiting task to see that
        await asyncio.sleep(0)
    assert not waiting.done(), "a later ack is settled, the awaited one is not"
    queue.add([(second, loop)], may_linger=False)
    queue.settle(taken_first, AckVerdicts({}))
    await _end(waiting)
    assert queue.under_way == 1


async def test_an_ack_that_fails_is_raised_however_many_failures_of_ended_loops_are_kept(
    node: MeshNode,
) -> None:
    (message,) = await _send(node, 1)
    queue = AckQueue(Clock())

    def fail(loop: _Loop) -> None:
        queue.add([(message, loop)], may_linger=False)
        queue.settle(queue.take(), AckVerdicts({message.message_uuid: NotHolder(f"of {id(loop)}")}))

    ended, opened = _Loop(is_open=False), [_Loop() for _ in range(ack_queue._MAX_FAILURES)]
    for each in (ended, *opened):
        fail(each)
    for each in opened:
        with pytest.raises(NotHolder, match=str(id(each))):
            queue.raise_failure(each)
    queue.raise_failure(ended)  # it had to make way


def _lose_claim(mesh: BlockingNode, message: Message) -> None:
    sql = "UPDATE a2a_messages SET claim_owner = 'another', claim_until_ms = ? WHERE message_uuid = ?"
    mesh.store.write(Script(Statement(sql, (2**52, message.message_uuid))))


def test_a_blocking_loop_that_is_left_leaves_the_failure_of_an_ack_to_waiting_for_it(
    blocking: BlockingNode,
) -> None:
    blocking.messages.send("z", 1, sender="a")
    for message in blocking.messages.receive("z"):
        _lose_claim(blocking, message)
        blocking.messages.ack(message)
        break
    with pytest.raises(NotHolder):
        blocking.messages.wait_for_acks()
    assert blocking.messages.wait_for_acks(), "it is raised once"


def test_a_blocking_loop_that_is_collected_under_a_lock_of_the_loop_does_not_wait(
    blocking: BlockingNode,
) -> None:
    blocking.messages.send("z", 1, sender="a")
    receiving = blocking.messages.receive("z")
    blocking.messages.ack(next(receiving))
    cycle: list[Any] = [receiving]
    cycle.append(cycle)
    lock, is_wanted, is_taken = threading.Lock(), threading.Event(), SimpleQueue[bool]()

    def take_lock() -> None:
        is_wanted.set()
        is_taken.put(lock.acquire(timeout=_LOCK_TIMEOUT_S))

    with lock:
        object.__getattribute__(blocking, "_loop").soon(take_lock)
        assert is_wanted.wait(PATIENCE_S)
        del receiving, cycle
        gc.collect()
    assert is_taken.get(timeout=PATIENCE_S), "the end of the loop waited for the thread that held the lock"
    assert blocking.messages.wait_for_acks()


def test_a_blocking_loop_that_is_closed_raises_the_failure_of_an_ack(blocking: BlockingNode) -> None:
    blocking.messages.send("z", 1, sender="a")
    receiving = blocking.messages.receive("z")
    message = next(receiving)
    _lose_claim(blocking, message)
    blocking.messages.ack(message)
    with pytest.raises(NotHolder):
        receiving.close()
    assert blocking.messages.wait_for_acks() is False
    assert blocking.messages.wait_for_acks(), "it is raised once"


# --- one loop in several tasks --------------------------------------------------------------------


async def test_of_two_tasks_that_share_a_loop_the_cancelled_one_gives_up_its_own_message(
    node: MeshNode,
) -> None:
    sent = [await node.messages.send("z", sender, sender=sender) for sender in "ab"]
    receiving = node.messages.receive("z")
    is_handling = asyncio.Event()

    async def handle() -> None:
        await next_of(receiving)
        is_handling.set()
        await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await is_handling.wait()
    second = await next_of(receiving)
    handling.cancel()
    await _end(handling)
    await settled(node)
    assert await _states(node, sent) == ["stored", "delivered"]
    assert await node.messages.ack(second, durable=True)
    again = await next_of(receiving)
    assert again.message_uuid == sent[0].message_uuid
    await node.messages.ack(again)
    await receiving.aclose()
    assert await _states(node, sent) == ["acked", "acked"]


async def test_tasks_that_take_turns_in_a_loop_leave_nothing_behind(node: MeshNode) -> None:
    await _send(node, 6)
    receiving = node.messages.receive("z")

    async def handle_one() -> None:
        await node.messages.ack(await next_of(receiving))

    for _ in range(3):
        await asyncio.create_task(handle_one())
        await handle_one()
    await asyncio.sleep(0)  # for the end of the last task to be noticed
    (consumer,) = node.messages._consumers
    assert list(consumer.handled) == [asyncio.current_task()]
    await receiving.aclose()
