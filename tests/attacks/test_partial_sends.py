"""Messages that are sent together, of which some fail: the error says which were sent, and which were not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.messages.messaging import PATIENCE_S, bodies, found
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh import Message, Script, Statement, load_settings
from vox_mesh.errors import ConstraintFailed, NotAllSent, Overloaded, Unreachable
from vox_mesh.messages import bulk_sending
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.write.breaker import Breaker
from vox_mesh.sync import Mesh as BlockingMesh

_REFUSE = (
    "CREATE TRIGGER refuse_some BEFORE INSERT ON a2a_messages WHEN new.receiver_agent = 'refused' "
    "BEGIN SELECT raise(ABORT, 'refused'); END"
)


class _HastyClock(Clock):
    """A clock that is ahead by so much more each time it is read."""

    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database in memory, behind a gate."""
    async with scene() as there:
        yield there


@pytest.fixture
def clock() -> _HastyClock:
    """A clock that stands still until the test moves it."""
    return _HastyClock()


@pytest.fixture
async def node(there: RestartableNodes, clock: _HastyClock) -> AsyncIterator[MeshNode]:
    """A node on it."""
    async with there.node(dependencies=Dependencies(monotonic=clock)) as node:
        await node.run_once()
        yield node


async def _stored(node: MeshNode, messages: list[Message]) -> set[str]:
    return {(await found(node, each)).state for each in messages}


async def test_an_error_says_which_messages_were_sent_and_which_failed(node: MeshNode) -> None:
    await node.store.write(Script(Statement(_REFUSE)))
    given = [("refused" if number % 3 == 0 else "coder", number) for number in range(600)]
    with pytest.raises(NotAllSent, match="200 of 600 messages failed") as raised:
        await node.messages.send_all(given, sender="planner")
    error = raised.value
    assert [(each.receiver_agent, each.body) for each in error.sent] == [
        each for each in given if each[0] == "coder"
    ]
    assert [(each.receiver_agent, each.body) for each, _ in error.failed] == [
        each for each in given if each[0] == "refused"
    ]
    assert {type(why) for _, why in error.failed} == {ConstraintFailed}
    assert await _stored(node, list(error.sent)) == {"stored"}
    assert await node.messages.queries.counts() == {"stored": 400}


async def test_a_failed_message_is_sent_again_under_its_id(node: MeshNode) -> None:
    await node.store.write(Script(Statement(_REFUSE)))
    with pytest.raises(NotAllSent) as raised:
        await node.messages.send_all([("refused", 1), ("coder", 2)], sender="planner", priority=2)
    await node.store.write(Script(Statement("DROP TRIGGER refuse_some")))
    ((failed, _),) = raised.value.failed
    for _ in range(2):
        again = await node.messages.send(
            failed.receiver_agent, failed.body, sender="planner", priority=2, key=failed.message_uuid
        )
        assert again.message_uuid == failed.message_uuid
    assert await node.messages.queries.counts() == {"stored": 2}


async def test_the_timeout_is_that_of_all_messages_together(
    there: RestartableNodes, node: MeshNode, clock: _HastyClock
) -> None:
    there.gate.hold()
    count = 2 * bulk_sending._TOGETHER + 10
    sending_all = asyncio.create_task(
        node.messages.send_all([("coder", number) for number in range(count)], sender="planner", timeout=10)
    )
    await there.gate.arrival()
    clock.now += 10
    there.gate.release()
    with pytest.raises(NotAllSent) as raised:
        async with asyncio.timeout(PATIENCE_S):
            await sending_all
    assert bodies(raised.value.sent) == list(range(bulk_sending._TOGETHER))
    assert {type(why) for _, why in raised.value.failed} == {Overloaded}
    assert await node.messages.queries.counts() == {"stored": bulk_sending._TOGETHER}


async def test_the_timeout_begins_with_the_call(node: MeshNode, clock: _HastyClock) -> None:
    def slowly() -> Iterator[tuple[str, int]]:
        yield "coder", 1
        clock.now += 10
        yield "coder", 2

    with pytest.raises(NotAllSent) as raised:
        await node.messages.send_all(slowly(), sender="planner", timeout=10)
    assert not raised.value.sent
    assert isinstance(raised.value.__cause__, Overloaded)
    assert await node.messages.queries.counts() == {}


def test_a_blocking_mesh_says_which_messages_were_sent() -> None:
    with BlockingMesh.open(load_settings(_env_file=None)) as mesh:
        mesh.store.write(Script(Statement(_REFUSE)))
        with pytest.raises(NotAllSent) as raised:
            mesh.messages.send_all([("refused", 1), ("coder", 2)], sender="planner")
        assert bodies(raised.value.sent) == [2]
        assert bodies(message for message, _ in raised.value.failed) == [1]


async def test_what_a_spool_takes_at_once_is_sent_though_the_timeout_has_passed(
    there: RestartableNodes, clock: _HastyClock, tmp_path: Path
) -> None:
    breaker = Breaker(time.monotonic, reset_timeout_s=PATIENCE_S)
    dependencies = Dependencies(monotonic=clock)
    async with there.node(dependencies=dependencies, spool=tmp_path / "spool.db", breaker=breaker) as node:
        await node.run_once()
        await node.messages.send("coder", "first", sender="planner")
        there.gate.before.extend(Unreachable("it is away") for _ in range(10_000))
        assert (await node.messages.send("coder", 1, sender="planner")).state == MessageState.SPOOLED
        clock.step = 20.0
        sent = await node.messages.send_all([("coder", 2), ("coder", 3)], sender="planner", timeout=10)
        assert {each.state for each in sent} == {MessageState.SPOOLED}
        clock.step = 0.0
