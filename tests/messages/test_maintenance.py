"""Maintenance of messages: overdue ones are reported once, and expired ones end."""

from __future__ import annotations

import asyncio

from tests.support.messages.messaging import NodeGroup, bodies, change, ids
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Message
from vox_mesh.messages.maintenance import OVERDUE
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.node import MeshNode


async def keep(node: MeshNode) -> None:
    """Have a node's keeper do its work, by all that was committed before."""
    await node.store.synced()
    await node._message_maintenance.run_once()
    await node.store.synced()


async def late(node: MeshNode, *messages: Message) -> None:
    """Have the time pass within which these were to be acknowledged."""
    await change(node, messages, ack_by_ms=await node.nodes.now_ms() - 1)


async def test_what_has_expired_is_ended_and_counted(any_node: MeshNode) -> None:
    sent = [await any_node.messages.send("z", number, sender="a", ttl=100) for number in range(3)]
    await any_node.messages.send("z", 3, sender="a")
    await change(any_node, sent, expires_ms=1)
    await keep(any_node)
    assert await any_node.messages.queries.counts() == {"expired": 3, "stored": 1}
    assert bodies(await any_node.messages.poll_inbox_from_db("z")) == [3]


async def test_what_someone_works_on_does_not_expire(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", ttl=100)
    (held,) = await node.messages.inbox("z")
    await change(node, [sent], expires_ms=1)
    await keep(node)
    await node.messages.ack(held)
    assert await node.messages.queries.counts() == {"acked": 1}


async def test_the_sender_of_an_overdue_message_is_notified(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", ack_within=100, thread="t")
    await late(node, sent)
    assert ids(await node.messages.queries.overdue()) == [sent.message_uuid]
    await keep(node)
    (reported,) = await node.messages.poll_inbox_from_db("a")
    assert (reported.sender_agent, reported.msg_type) == (MESH_AGENT, OVERDUE)
    assert (reported.thread_id, reported.reply_to) == ("t", sent.message_uuid)
    said = reported.body
    assert said.pop("late_ms") >= 1
    assert said == {"message_uuid": sent.message_uuid, "receiver_agent": "z", "state": "stored"}
    assert ids(await node.messages.queries.overdue()) == [sent.message_uuid]  # it still is
    assert await node.messages.queries.overdue(unnotified=True) == []


async def test_several_keepers_at_once_tell_of_each_message_once(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    sent = [
        await nodes[0].messages.send("z", number, sender=f"s{number}", ack_within=100) for number in range(5)
    ]
    await late(nodes[0], *sent)
    for _ in range(2):
        await asyncio.gather(*(keep(node) for node in nodes))
    reported = await nodes[0].messages.queries.listed(sender=MESH_AGENT)
    assert sorted(each.receiver_agent for each in reported) == [f"s{number}" for number in range(5)]


async def test_one_that_ended_half_way_through_telling_tells_no_second_time(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", ack_within=100)
    await late(node, sent)
    await keep(node)
    await change(node, [sent], overdue_ms=None)  # as if it had not got further than telling
    await keep(node)
    assert len(await node.messages.queries.listed(sender=MESH_AGENT)) == 1


async def test_no_one_is_notified_of_what_was_acknowledged_or_is_not_late(node: MeshNode) -> None:
    sent = [await node.messages.send("z", number, sender="a", ack_within=100) for number in range(2)]
    await node.messages.send("z", 2, sender="a")
    held = await node.messages.inbox("z")
    await node.messages.ack(held[0])
    await late(node, sent[0])
    await keep(node)
    assert await node.messages.queries.listed(sender=MESH_AGENT) == []
    assert await node.messages.queries.overdue() == []


async def test_with_nothing_to_do_a_keeper_writes_nothing(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        await node.messages.send("z", 1, sender="a", ack_within=100, ttl=1_000)
        await node.messages.ack(*await node.messages.inbox("z"))
        written = len(there.gate.batches)
        await keep(node)
        assert len(there.gate.batches) == written
