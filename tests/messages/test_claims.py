"""Claims: a message is one consumer's for a time, and what is said of it is the holder's alone to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.messages.messaging import (
    NodeGroup,
    bodies,
    change,
    come_due,
    database_ms,
    found,
    ids,
    lapse,
    row_of,
)
from tests.support.oplog.authoring import RestartableNodes
from tests.support.running.lengths import LOST_ANSWERS
from tools.homes import FILE, MESH
from tools.sqld import Server
from vox_mesh import Mesh, Message, Settings
from vox_mesh.errors import BadValue, NoAnswer, NotHolder
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode

_LONG_S = 3_600.0


async def claimed(node: MeshNode, name: str, limit: int = 256) -> list[Message]:
    """What is claimed under this name, from the database itself."""
    return await node.messages.claims.claim(["z"], name, lease_s=_LONG_S, limit=limit)


async def send(node: MeshNode, *said: object, sender: str = "a") -> list[Message]:
    """Send these to z, one after another."""
    return [await node.messages.send("z", each, sender=sender) for each in said]


async def test_a_claimed_message_is_not_free_for_others(any_node: MeshNode) -> None:
    (sent,) = await send(any_node, 1)
    (held,) = await any_node.messages.inbox("z")
    assert held.message_uuid == sent.message_uuid
    assert held.delivery_attempts == 1
    assert await any_node.messages.poll_inbox_from_db("z") == []
    assert (await found(any_node, sent)).state == MessageState.DELIVERED
    await any_node.messages.ack(held)
    assert (await found(any_node, sent)).state == MessageState.ACKED
    assert await any_node.messages.poll_inbox_from_db("z") == []


async def test_not_acknowledged_within_its_lease_it_comes_again(node: MeshNode) -> None:
    await send(node, 1)
    (first,) = await node.messages.inbox("z")
    await lapse(node, first)
    (again,) = await node.messages.poll_inbox_from_db("z")
    assert again.message_uuid == first.message_uuid
    assert again.delivery_attempts == 2
    for says in (node.messages.ack(first), node.messages.nack(first), node.messages.renew(first)):
        with pytest.raises(NotHolder):
            await says
    await node.messages.ack(again)


async def test_a_late_ack_is_refused_also_if_no_one_took_the_message_since(node: MeshNode) -> None:
    await send(node, 1)
    (late,) = await node.messages.inbox("z")
    await lapse(node, late)
    with pytest.raises(NotHolder) as refused:
        await node.messages.ack(late)
    assert late.message_uuid in refused.value.line
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [1]


async def test_the_lease_is_as_long_as_was_asked_for_by_the_databases_clock(node: MeshNode) -> None:
    await send(node, 1)
    before = await database_ms(node)
    (held,) = await node.messages.inbox("z", lease=500)
    after = await database_ms(node)
    assert held.claim_until_ms is not None
    assert before + 500_000 <= held.claim_until_ms <= after + 500_000


@pytest.mark.parametrize("lease", [0.0, 0.09, 86_401.0, float("nan"), -1.0])
async def test_a_lease_that_makes_no_sense_is_refused(local: MeshNode, lease: float) -> None:
    await send(local, 1)
    with pytest.raises(BadValue):
        await local.messages.inbox("z", lease=lease)
    with pytest.raises(BadValue):
        await anext(local.messages.receive("z", lease=lease))
    (held,) = await local.messages.inbox("z")
    with pytest.raises(BadValue):
        await local.messages.renew(held, lease=lease)


@pytest.mark.parametrize("count", [0, -1])
async def test_no_one_claims_nothing(local: MeshNode, count: int) -> None:
    with pytest.raises(BadValue):
        await local.messages.inbox("z", limit=count)
    with pytest.raises(BadValue):
        await anext(local.messages.receive("z", at_once=count))


async def test_renewing_begins_the_lease_again_for_all_that_was_claimed_together(node: MeshNode) -> None:
    await send(node, 1, 2)
    held = await node.messages.inbox("z", lease=1_000)
    await node.messages.renew(held[1], lease=80_000)
    for message in held:
        assert message.claim_until_ms is not None
        until = (await row_of(node, message))["claim_until_ms"]
        assert until > message.claim_until_ms + 70_000_000
    await node.messages.ack(*held)
    with pytest.raises(NotHolder):
        await node.messages.renew(held[0])


async def test_what_is_in_use_is_given_back_when_its_node_ends(named: Settings) -> None:
    async with Mesh.open(named) as ending:
        await send(ending, 1, 2)
        held = await ending.messages.inbox("z")
    async with Mesh.open_command(named) as command:
        assert [each.state for each in await command.messages.queries.peek(["z"])] == ["stored", "stored"]
        again = await command.messages.poll_inbox_from_db("z")
        assert ids(again) == ids(held)
        assert [each.delivery_attempts for each in again] == [2, 1]  # only the first counts as tried


async def test_what_an_earlier_incarnation_claimed_is_free_for_the_next_but_for_no_one_else(
    crowd: NodeGroup,
) -> None:
    other = await crowd.node("other")
    killed = await crowd.node("worker")
    await send(killed, 1)
    (lost,) = await killed.messages.inbox("z")
    killed.messages.claims._handed_out.clear()  # killed, it gives nothing back
    await killed.store.close()
    assert await other.messages.poll_inbox_from_db("z") == []
    again = await crowd.node("worker")
    await again.store.synced()
    (held,) = await again.messages.inbox("z")
    assert held.message_uuid == lost.message_uuid
    assert held.delivery_attempts == 2
    await again.messages.ack(held)


async def test_what_expired_in_an_earlier_incarnations_hands_is_not_looked_for_forever(
    crowd: NodeGroup,
) -> None:
    killed = await crowd.node("worker")
    (sent,) = await send(killed, 1)
    await killed.messages.inbox("z")
    await change(killed, [sent], expires_ms=1)
    killed.messages.claims._handed_out.clear()
    await killed.store.close()
    again = await crowd.node("worker")
    await again.store.synced()
    assert not (await again.messages.claims.find_claimable(["z"])).is_free
    assert await again.messages.poll_inbox_from_db("z") == []


async def test_a_name_that_begins_like_another_nodes_frees_nothing_of_it(crowd: NodeGroup) -> None:
    short, long = await crowd.node("worker"), await crowd.node("worker-1")
    await send(short, 1)
    assert len(await long.messages.poll_inbox_from_db("z")) == 1
    assert await short.messages.poll_inbox_from_db("z") == []


async def test_the_short_way_claims_only_what_is_alone_in_its_pair(node: MeshNode) -> None:
    async def claim_one(message: Message, name: str) -> list[Message]:
        return await node.messages.claims.claim_one(message.message_uuid, name, lease_s=_LONG_S)

    one, other = node.messages.claims.new_name(), node.messages.claims.new_name()
    first, second = await send(node, 1, 2)
    for message in (first, second):
        assert await claim_one(message, one) == []
    (held,) = await node.messages.inbox("z", limit=1)
    await node.messages.nack(held, retry_in=_LONG_S)
    assert await claim_one(second, one) == []
    await come_due(node)
    assert await claim_one(second, one) == []
    (held,) = await node.messages.poll_inbox_from_db("z", limit=1)
    await node.messages.ack(held)
    for _ in range(2):  # asked again under the same name, it is the same
        (held,) = await claim_one(second, one)
        assert (held.body, held.delivery_attempts) == (2, 1)
    assert await claim_one(second, other) == []
    await node.messages.nack(held, retry_in=_LONG_S)
    assert await claim_one(second, other) == []
    await come_due(node)
    await change(node, [second], expires_ms=1)
    assert await claim_one(second, other) == []


# --- answers that are lost ----------------------------------------------------------------------------


async def test_asked_again_under_the_same_name_it_is_the_same_claim(node: MeshNode) -> None:
    await send(node, 1, 2)
    await send(node, 3, sender="b")
    name = node.messages.claims.new_name()
    first = await claimed(node, name)
    again = await claimed(node, name)
    assert ids(again) == ids(first)
    assert [each.delivery_attempts for each in again] == [1, 1, 1]
    await node.messages.ack(*first)
    assert await claimed(node, name) == []


async def test_the_same_claim_is_not_changed_by_more_urgent_messages(node: MeshNode) -> None:
    await send(node, "a1", "a2")
    await send(node, "b1", sender="b")
    name = node.messages.claims.new_name()
    first = await claimed(node, name, limit=3)
    for sender in "cdef":
        await node.messages.send("z", sender, sender=sender, priority=3)
    await node.messages.send("z", "a3", sender="a", priority=3)
    assert bodies(await claimed(node, name, limit=3)) == bodies(first)


async def test_when_the_answer_is_lost_the_same_messages_come_with_the_next(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        await send(node, 1, 2)
        there.gate.after.append(NoAnswer("lost on the way back"))
        held = await node.messages.inbox("z")
        assert [(each.body, each.delivery_attempts) for each in held] == [(1, 1), (2, 1)]
        there.gate.after.append(NoAnswer("lost on the way back"))
        await node.messages.ack(*held)  # sent again, and nothing is wrong with that
        assert [each.state for each in await node.messages.queries.listed()] == ["acked", "acked"]
        there.gate.after.append(NoAnswer("lost on the way back"))
        (sent,) = await send(node, 3)
        assert bodies(await node.messages.queries.peek(["z"])) == [3]
        (last,) = await node.messages.inbox("z")
        there.gate.after.append(NoAnswer("lost on the way back"))
        await node.messages.nack(last, retry_in=_LONG_S)
        row = await row_of(node, sent)
        assert (row["state"], row["delivery_attempts"]) == ("stored", 1)


@pytest.mark.soak
async def test_answers_that_a_network_loses_change_nothing(shared_server: Server, tmp_path: Path) -> None:
    rounds = LOST_ANSWERS // 2
    async with Proxy(shared_server.port) as proxy:
        settings = MESH.settings(tmp_path, shared_server, tick="1h", http=False, db_url=proxy.url)
        async with Mesh.open(settings) as node:
            for number in range(rounds):
                proxy.spoil(Fault.DROP_ANSWER)
                await send(node, number)
                proxy.spoil(Fault.CUT_ANSWER)
                (held,) = await node.messages.poll_inbox_from_db("z")
                assert (held.body, held.delivery_attempts) == (number, 1)
                proxy.spoil(Fault.DROP_ANSWER)
                await node.messages.ack(held)
            assert await node.messages.queries.counts() == {"acked": rounds}


# --- whose it is to say -------------------------------------------------------------------------------


async def test_no_one_acknowledges_or_gives_back_what_another_holds(crowd: NodeGroup) -> None:
    holder, other = await crowd.node("holder"), await crowd.node("other")
    (sent,) = await send(holder, 1)
    (held,) = await holder.messages.poll_inbox_from_db("z")
    stolen = held._replace(claim_owner=other.messages.claims.new_name())
    unclaimed = sent
    for message in (stolen, unclaimed):
        for says in (
            other.messages.ack(message),
            other.messages.nack(message),
            other.messages.renew(message),
        ):
            with pytest.raises(NotHolder):
                await says
    await holder.messages.ack(held)


async def test_what_was_acknowledged_may_be_acknowledged_again_but_not_given_back(node: MeshNode) -> None:
    await send(node, 1)
    (held,) = await node.messages.inbox("z")
    await node.messages.ack(held)
    await node.messages.ack(held)
    for says in (node.messages.nack(held), node.messages.renew(held)):
        with pytest.raises(NotHolder):
            await says
    assert await node.messages.queries.counts() == {"acked": 1}


async def test_what_was_given_back_may_be_given_back_again_but_not_acknowledged(node: MeshNode) -> None:
    await send(node, 1)
    (held,) = await node.messages.inbox("z")
    await node.messages.nack(held, retry_in=100)
    before = await row_of(node, held)
    await node.messages.nack(held, retry_in=100)
    assert await row_of(node, held) == before
    with pytest.raises(NotHolder):
        await node.messages.ack(held)


async def test_of_several_acks_the_ones_that_can_be_are_made(node: MeshNode) -> None:
    for sender in "abc":
        await send(node, sender, sender=sender)
    one, lost, other = await node.messages.inbox("z")
    await lapse(node, lost)
    with pytest.raises(NotHolder):
        await node.messages.ack(one, lost, other)
    states = [(await found(node, each)).state for each in (one, lost, other)]
    assert states == [MessageState.ACKED, MessageState.DELIVERED, MessageState.ACKED]
    await node.messages.ack()  # of nothing, is nothing


# --- what is never claimed ----------------------------------------------------------------------------


async def test_what_has_expired_is_not_delivered_and_holds_no_one_back(node: MeshNode) -> None:
    sent = [await node.messages.send("z", number, sender="a", ttl=_LONG_S) for number in range(2)]
    await send(node, 2)
    await change(node, sent, expires_ms=1)
    assert bodies(await node.messages.queries.peek(["z"])) == [2]
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [2]


async def test_one_that_was_given_back_and_expired_holds_no_one_back(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", ttl=_LONG_S)
    (held,) = await node.messages.inbox("z")
    await node.messages.nack(held, retry_in=_LONG_S)
    await send(node, 2)
    assert await node.messages.poll_inbox_from_db("z") == []
    await change(node, [sent], expires_ms=1)
    assert bodies(await node.messages.poll_inbox_from_db("z")) == [2]


async def test_no_inbox_sees_anything_of_another_mesh(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick="1h")
    elsewhere = settings.model_copy(update={"scope_id": "elsewhere", "home_dir": tmp_path / "elsewhere"})
    another = settings.model_copy(update={"repository_id": "another", "home_dir": tmp_path / "another"})
    async with Mesh.open(settings) as here, Mesh.open(elsewhere) as there, Mesh.open(another) as neighbour:
        await send(here, 1)
        for node in (there, neighbour):
            assert await node.messages.poll_inbox_from_db("z") == []
            assert await node.messages.queries.listed() == []
        assert bodies(await here.messages.poll_inbox_from_db("z")) == [1]
