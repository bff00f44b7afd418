"""Sending many: checked together, stored in order, each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.messages.messaging import bodies, ids
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from tools.homes import FILE
from vox_mesh import Mesh, Message, Script
from vox_mesh.errors import BadValue, MessageTaken
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.script import Outcome

_RECEIVERS = ("coder", "reviewer")
_COUNT = 600


async def test_each_recipient_gets_all_of_its_messages_in_order(any_node: MeshNode) -> None:
    given = [(_RECEIVERS[number % 2], number) for number in range(_COUNT)]
    sent = await any_node.messages.send_all(given, sender="planner", thread="t", priority=2)
    assert [(each.receiver_agent, each.body) for each in sent] == given
    for first, receiver in enumerate(_RECEIVERS):
        expected = [each for each in sent if each.receiver_agent == receiver]
        found: list[Message] = []
        while len(found) < len(expected):
            batch = await any_node.messages.inbox(receiver)
            assert batch, f"only {len(found)} of {len(expected)} messages were found"
            await any_node.messages.ack(*batch)
            found += batch
        assert ids(found) == ids(expected)
        assert bodies(found) == list(range(first, _COUNT, 2))
        assert {(each.sender_agent, each.thread_id, each.priority) for each in found} == {("planner", "t", 2)}


async def test_many_share_few_signatures(tmp_path: Path) -> None:
    """What is stored together is signed together: a recipient checks one signature for many."""
    async with Mesh.open(FILE.settings(tmp_path, None, tick="1h")) as node:
        sent = await node.messages.send_all([("coder", number) for number in range(_COUNT)], sender="planner")
    assert len({each.signature.partition("+")[0] for each in sent}) <= _COUNT // 20


_BAD: dict[str, Any] = {
    "a name that is not allowed": ("a\nb", 1),
    "everyone": ("*", 1),
    "no JSON": ("coder", {1, 2}),
    "no body": ("coder",),
    "no pair": "ab",
}


@pytest.mark.parametrize("what", _BAD)
async def test_one_bad_message_is_refused_before_the_first_is_sent(local: MeshNode, what: str) -> None:
    with pytest.raises(BadValue):
        await local.messages.send_all([("coder", 1), _BAD[what], ("coder", 2)], sender="planner")
    assert await local.messages.queries.counts() == {}


async def test_too_many_are_refused_without_reading_them_all(local: MeshNode) -> None:
    def endless() -> Any:
        while True:
            yield "coder", 1

    with pytest.raises(BadValue, match="at most 10000 messages"):
        await local.messages.send_all(endless(), sender="planner")
    assert await local.messages.queries.counts() == {}


async def test_the_writes_of_a_message_share_its_timeout(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with there.node(dependencies=Dependencies(monotonic=clock)) as node:
        key = (await node.messages.send("coder", 1, sender="planner")).message_uuid
        store_write, timeouts = node.store.write, list[float | None]()

        async def write(script: Script, *, timeout: float | None = None) -> Outcome:
            timeouts.append(timeout)
            clock.now += 2
            return await store_write(script, timeout=timeout)

        monkeypatch.setattr(node.store, "write", write)
        with pytest.raises(MessageTaken):
            await node.messages.send("coder", 2, sender="planner", key=key, timeout=10)
        assert timeouts == [10, 8]


async def test_none_is_fine(local: MeshNode) -> None:
    assert await local.messages.send_all([], sender="planner") == []


@pytest.mark.parametrize("option", ["key", "route", "statements", "signed_by", "thread_id"])
async def test_an_option_that_each_message_needs_for_itself_is_refused(local: MeshNode, option: str) -> None:
    given: dict[str, Any] = {option: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    with pytest.raises(BadValue, match=f"can't have {option}"):
        await local.messages.send_all([("coder", 1)], sender="planner", **given)
    with pytest.raises(BadValue, match=f"can't have {option}"):
        await local.messages.send_all([], sender="planner", **given)
    assert await local.messages.queries.counts() == {}
