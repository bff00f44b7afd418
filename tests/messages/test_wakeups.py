"""Wake-ups: a commit wakes the receivers that it may have something for, and no others.

The looks that each receiver takes by itself now and then are put off here: what comes, comes by a wake-up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages.messaging import PATIENCE_S, NodeGroup, bodies, change, crowd_on, settled
from tests.support.oplog.authoring import RestartableNodes
from tests.support.running.lengths import SHARED_HOMES
from tools.homes import HomeCase
from vox_mesh import Message
from vox_mesh.errors import NoAnswer
from vox_mesh.messages import consumer, messages, wakeups
from vox_mesh.messages.consumer import Consumer
from vox_mesh.messages.scripts import sql
from vox_mesh.messages.wakeups import FEW, Wakeups
from vox_mesh.node import MeshNode
from vox_mesh.store import Rows, new_key

_NEVER_S = 1e6
_HOUR_S = 3_600.0
_SHORT_S = 0.3
_MANY = 300
_MESSAGES = 50
_FEW_MESSAGES = 15
_LOOKS = {
    sql(name): name
    for name in ("claimable_quick", "claimable", "next_free", "nonempty_inboxes", "free_times")
}
_ROLE = "role:reviewer"


class Resting:
    """The receivers that wait for a wake-up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._receivers: set[Consumer] = set()
        self._since: set[Consumer] = set()
        self._changed = asyncio.Event()
        rest = Consumer._wait_for_message

        async def counted(receiver: Consumer) -> None:
            self._receivers.add(receiver)
            self._since.add(receiver)
            self._changed.set()
            try:
                await rest(receiver)
            finally:
                self._receivers.discard(receiver)

        monkeypatch.setattr(Consumer, "_wait_for_message", counted)

    async def reach(self, count: int) -> None:
        """Wait until this many rest."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._receivers) < count or len(self._since) < count:
                self._changed.clear()
                await self._changed.wait()

    async def reach_again(self, count: int) -> None:
        """Wait until this many have begun to rest after now, and rest."""
        self._since.clear()
        await self.reach(count)


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> Resting:
    """No receiver looks by itself."""
    for module in (consumer, messages):
        monkeypatch.setattr(module, "POLL_S", _NEVER_S)
    monkeypatch.setattr(wakeups, "CHECK_S", _NEVER_S)
    return Resting(monkeypatch)


@pytest.fixture(params=SHARED_HOMES, ids=str)
async def others(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeGroup]:
    """Nodes that have no relay: each knows what the others do from the database alone."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with crowd_on(case, tmp_path, server) as crowd:
        yield crowd


@asynccontextmanager
async def receiving(
    node: MeshNode, agents: Sequence[str], role: str = ""
) -> AsyncIterator[asyncio.Queue[Message]]:
    """Have these agents receive and acknowledge; what they got."""
    got: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(agent: str) -> None:
        async for message in node.messages.receive(agent, roles=[role] if role else []):
            await node.messages.ack(message)
            got.put_nowait(message)

    tasks = [asyncio.create_task(receive(agent)) for agent in agents]
    try:
        yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(node)


async def next_of(got: asyncio.Queue[Message]) -> Message:
    """The next message that was received, which must come."""
    async with asyncio.timeout(PATIENCE_S):
        return await got.get()


def looks(node: MeshNode, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count from now on how often a node asks for messages to claim."""
    counted: Counter[str] = Counter()
    read = node.store.read

    async def counting(text: str, *values: Any, **options: Any) -> Rows:
        if text in _LOOKS:
            counted[_LOOKS[text]] += 1
        return await read(text, *values, **options)

    monkeypatch.setattr(node.store, "read", counting)
    return counted


def idle(count: int) -> list[str]:
    """Agents for which nothing comes."""
    return [f"idle-{number}" for number in range(count)]


# --- no others ---------------------------------------------------------------------------------------


async def test_messages_to_one_of_many_receivers_wake_only_that_one(
    node: MeshNode, resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(node, ["busy", *idle(_MANY)]) as got:
        await resting.reach(_MANY + 1)
        counted = looks(node, monkeypatch)
        for number in range(_MESSAGES):
            await node.messages.send("busy", number, sender="sender")
            assert (await next_of(got)).body == number
        await resting.reach(_MANY + 1)
    assert counted.total() < 10 * _MESSAGES, counted


async def test_a_message_to_a_role_wakes_a_few_of_its_many_receivers(
    others: NodeGroup, resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_RAMP_S", _NEVER_S)
    node, other = await others.node("a"), await others.node("b")
    async with receiving(node, idle(_MANY), "reviewer") as got:
        await resting.reach(_MANY)
        counted = looks(node, monkeypatch)
        for number in range(5):
            await other.messages.send(_ROLE, number, sender="sender")
            assert (await next_of(got)).body == number
        await resting.reach(_MANY)
    assert counted.total() < _MANY, counted


async def test_while_a_message_to_a_role_is_worked_on_commits_wake_no_receiver_of_it(
    others: NodeGroup, resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = await others.node("a"), await others.node("b")
    first, _ = [await other.messages.send(_ROLE, number, sender="sender") for number in range(2)]
    (held,) = await other.messages.inbox("z", roles=["reviewer"], limit=1)
    assert held.message_uuid == first.message_uuid
    async with receiving(node, ["busy"]) as got, receiving(node, idle(_MANY), "reviewer") as of_role:
        await resting.reach(_MANY + 1)
        counted = looks(node, monkeypatch)
        for number in range(_FEW_MESSAGES):
            await other.messages.send("busy", number, sender="sender")
            assert (await next_of(got)).body == number
        assert counted["claimable_quick"] < 3 * _FEW_MESSAGES, counted
        await other.messages.ack(held)
        assert (await next_of(of_role)).body == 1


async def test_many_receivers_that_begin_together_claim_nothing_one_by_one(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    await other.messages.send("idle-200", "here already", sender="sender")
    before = node.store.stats.answered
    async with receiving(node, idle(_MANY)) as got:
        assert (await next_of(got)).body == "here already"
        await resting.reach(_MANY)
        assert node.store.stats.answered - before < 5 * FEW


# --- but that one ------------------------------------------------------------------------------------


async def test_a_message_that_another_node_stores_wakes_its_receiver(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    async with receiving(node, ["target", *idle(2 * FEW)]) as got:
        await resting.reach(2 * FEW + 1)
        await other.messages.send("target", 1, sender="sender")
        assert (await next_of(got)).body == 1


async def test_a_message_that_another_node_gives_back_wakes_a_receiver_of_its_role(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    await other.messages.send(_ROLE, 1, sender="sender")
    for retry_in in (0.0, _SHORT_S):  # at once, and when its time has come without a commit
        (held,) = await other.messages.inbox("z", roles=["reviewer"])
        async with receiving(node, idle(2 * FEW), "reviewer") as got:
            await resting.reach(2 * FEW)
            await other.messages.nack(held, retry_in=retry_in)
            assert (await next_of(got)).body == 1
        await other.messages.send(_ROLE, 1, sender="sender")


async def test_the_end_of_a_lease_wakes_a_receiver(others: NodeGroup, resting: Resting) -> None:
    node, other = await others.node("a"), await others.node("b")
    async with receiving(node, idle(2 * FEW), "reviewer") as got:
        await resting.reach(2 * FEW)
        await other.messages.send(_ROLE, 1, sender="sender")
        assert (await next_of(got)).body == 1
    await other.messages.send(_ROLE, 2, sender="sender")
    await other.messages.inbox("z", roles=["reviewer"], lease=_SHORT_S)  # and is not heard of again
    async with receiving(node, idle(2 * FEW), "reviewer") as got:
        assert (await next_of(got)).body == 2


async def test_a_lease_that_is_released_early_wakes_a_receiver(others: NodeGroup, resting: Resting) -> None:
    node, other = await others.node("a"), await others.node("b")
    await other.messages.send(_ROLE, 1, sender="sender")
    held = await other.messages.inbox("z", roles=["reviewer"], lease=_HOUR_S)
    async with receiving(node, idle(2 * FEW), "reviewer") as got:
        await resting.reach(2 * FEW)
        await other.messages.put_back(held)
        assert (await next_of(got)).body == 1


async def test_an_acknowledgement_wakes_a_receiver_of_what_was_sent_next(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    for number in range(2):
        await other.messages.send(_ROLE, number, sender="sender")
    (first,) = await other.messages.inbox("z", roles=["reviewer"], limit=1)
    async with receiving(node, idle(2 * FEW), "reviewer") as got:
        await resting.reach(2 * FEW)
        await other.messages.ack(first)
        assert (await next_of(got)).body == 1


async def test_a_message_that_expires_wakes_a_receiver_of_what_was_sent_next(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    expiring = await other.messages.send(_ROLE, 0, sender="sender", ttl=_HOUR_S)
    await other.messages.send(_ROLE, 1, sender="sender")
    (held,) = await other.messages.inbox("z", roles=["reviewer"], limit=1)
    await other.messages.nack(held, retry_in=_HOUR_S)
    async with receiving(node, idle(2 * FEW), "reviewer") as got:
        await resting.reach(2 * FEW)
        await change(other, [expiring], expires_ms=1)
        assert (await next_of(got)).body == 1


async def test_a_dead_letter_that_is_sent_again_wakes_its_receiver(
    others: NodeGroup, resting: Resting
) -> None:
    node, other = await others.node("a"), await others.node("b")
    dead = await other.messages.send("target", 1, sender="sender", max_attempts=1)
    (held,) = await other.messages.inbox("target")
    await other.messages.nack(held)
    async with receiving(node, ["target", *idle(2 * FEW)]) as got:
        await resting.reach(2 * FEW + 1)
        await other.messages.queries.retry(dead.message_uuid)
        assert (await next_of(got)).message_uuid == dead.message_uuid


async def test_what_an_earlier_incarnation_had_claimed_can_be_had_by_the_next(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as earlier, there.node("a") as node:
        await earlier.run_once()
        await earlier.messages.send(_ROLE, 1, sender="sender")
        assert bodies(await earlier.messages.inbox("z", roles=["reviewer"], lease=_HOUR_S)) == [1]
        assert (await earlier.messages.claims.free_times([_ROLE]))[_ROLE] > earlier.clock.now_ms
        await node.run_once()
        assert (await node.messages.claims.free_times([_ROLE]))[_ROLE] <= node.clock.now_ms
        async with receiving(node, idle(2 * FEW), "reviewer") as got:
            assert (await next_of(got)).body == 1


async def test_what_the_relay_brings_wakes_its_receiver(others: NodeGroup, resting: Resting) -> None:
    node, other = await others.node("a"), await others.node("b")
    async with receiving(node, ["target", *idle(2 * FEW)]) as got:
        await resting.reach(2 * FEW + 1)
        sent = await other.messages.send("target", 1, sender="sender")
        node.messages.relay_buffer.add([sent])
        assert (await next_of(got)).message_uuid == sent.message_uuid
        assert node.messages.relay_buffer.kept_ids(["target"]) == []


async def test_what_the_relay_brought_is_dropped_when_another_node_has_it(
    others: NodeGroup, resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_CLEAN_INTERVAL_S", 0.0)
    node, other = await others.node("a"), await others.node("b")
    dropped = asyncio.Event()
    drop = node.messages.relay_buffer._drop

    def drop_and_note(key: str) -> None:
        drop(key)
        dropped.set()

    monkeypatch.setattr(node.messages.relay_buffer, "_drop", drop_and_note)
    async with receiving(node, idle(2 * FEW), "reviewer"):
        await resting.reach(2 * FEW)
        sent = await other.messages.send("z", 1, sender="sender")
        await other.messages.ack(*await other.messages.inbox("z"))
        brought = sent._replace(message_uuid=new_key(), receiver_agent=_ROLE)  # and is not stored yet
        node.messages.relay_buffer.add([brought])
        await resting.reach_again(2 * FEW)
        assert not dropped.is_set()
        await change(other, [sent], message_uuid=brought.message_uuid)
        async with asyncio.timeout(PATIENCE_S):
            await dropped.wait()


# --- and when it can't be known ----------------------------------------------------------------------


class Unanswered:
    """Inboxes that can't be asked about."""

    async def nonempty_inboxes(self, limit: int, *, fresh: bool = False) -> list[str]:
        """Fail as a database that is away."""
        raise NoAnswer("no answer")

    async def free_times(self, names: Sequence[str]) -> dict[str, int]:
        """Never asked for."""
        raise AssertionError


class CountingReceiver:
    """A receiver that counts how often it was woken."""

    def __init__(self, name: str) -> None:
        self.names: tuple[str, ...] = (name,)
        self.woken = 0

    def wake(self) -> None:
        """It was woken."""
        self.woken += 1

    def mark_checked(self) -> None:
        """It was not."""
        raise AssertionError


async def test_if_inboxes_can_not_be_looked_at_every_receiver_looks_once_by_itself(local: MeshNode) -> None:
    waking = Wakeups(local.store, Unanswered(), local.clock, tuple)
    sleepers = [CountingReceiver(name) for name in idle(2 * FEW)]
    with ExitStack() as waiting:
        for sleeper in sleepers:
            waiting.enter_context(waking.waking(sleeper))
        assert await waking.run_once() is not None
        assert await waking.run_once() is not None
    assert {sleeper.woken for sleeper in sleepers} == {1}
