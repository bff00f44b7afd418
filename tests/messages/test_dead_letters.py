"""Dead letters: what was tried too often goes there, and nothing else does."""

from __future__ import annotations

import pytest

from tests.support.messages.messaging import bodies, come_due, database_ms, found, lapse, row_of, take
from vox_mesh.errors import BadValue, NotHolder, NotKnown
from vox_mesh.model.messages.records import MAX_ATTEMPTS, MessageState
from vox_mesh.node import MeshNode


async def test_poison_ends_there_after_its_attempts_and_then_its_successors_flow(any_node: MeshNode) -> None:
    messages = any_node.messages
    poison = await messages.send("z", "poison", sender="a", max_attempts=3)
    await messages.send("z", "next", sender="a")
    for attempt in range(1, 4):
        (held,) = await messages.poll_inbox_from_db("z", limit=1)
        assert (held.body, held.delivery_attempts) == ("poison", attempt)
        await messages.nack(held, retry_in=0, reason="it does not parse")
    dead = await found(any_node, poison)
    assert (dead.state, dead.ended_reason) == (MessageState.DEAD, "it does not parse")
    assert bodies(await messages.poll_inbox_from_db("z")) == ["next"]
    assert bodies(await messages.queries.listed(state="dead")) == ["poison"]


async def test_without_a_word_a_message_is_tried_ten_times(local: MeshNode) -> None:
    sent = await local.messages.send("z", 1, sender="a")
    for attempt in range(MAX_ATTEMPTS):
        assert (await found(local, sent)).state == MessageState.STORED, attempt
        (held,) = await local.messages.poll_inbox_from_db("z")
        await local.messages.nack(held, retry_in=0)
    assert (await found(local, sent)).state == MessageState.DEAD


async def test_one_whose_consumers_die_ends_there_too(node: MeshNode) -> None:
    poison = await node.messages.send("z", "poison", sender="a", max_attempts=2)
    await node.messages.send("z", "next", sender="a")
    for _ in range(2):
        held = await node.messages.poll_inbox_from_db("z")
        assert bodies(held) == ["poison", "next"]
        await lapse(node, *held)
    (left,) = await node.messages.poll_inbox_from_db("z")
    assert (left.body, left.delivery_attempts) == ("next", 1)
    dead = await found(node, poison)
    assert (dead.state, dead.ended_reason) == (MessageState.DEAD, "not acknowledged in 2 attempts")


async def test_a_loop_buries_what_was_tried_too_often_and_goes_on(node: MeshNode) -> None:
    poison = await node.messages.send("z", "poison", sender="a", max_attempts=1)
    await node.messages.send("z", "next", sender="a")
    (held,) = await node.messages.inbox("z", limit=1)
    await lapse(node, held)
    receiving = node.messages.receive("z")
    assert bodies(await take(node, receiving, 1)) == ["next"]
    assert (await found(node, poison)).ended_reason == "not acknowledged in 1 attempt"
    await receiving.aclose()


async def test_those_claimed_behind_poison_do_not_count_as_tried(node: MeshNode) -> None:
    await node.messages.send("z", "poison", sender="a", max_attempts=5)
    innocent = [await node.messages.send("z", number, sender="a", max_attempts=2) for number in range(3)]
    for ending in ("dies", "nacks", "dies", "nacks", "nacks"):
        held = await node.messages.poll_inbox_from_db("z")
        assert bodies(held) == ["poison", 0, 1, 2]
        if ending == "dies":
            await lapse(node, *held)
        else:
            await node.messages.nack(held[0], retry_in=0)
    for message in innocent:
        assert (await row_of(node, message))["delivery_attempts"] == 0
    assert [each.delivery_attempts for each in await node.messages.poll_inbox_from_db("z")] == [1, 1, 1]


async def test_one_given_back_counts_as_tried_also_if_it_was_claimed_behind_another(node: MeshNode) -> None:
    await node.messages.send("z", "first", sender="a")
    poison = await node.messages.send("z", "poison", sender="a", max_attempts=1)
    first, second = await node.messages.inbox("z")
    await node.messages.ack(first)
    assert second.delivery_attempts == 1
    await node.messages.nack(second)
    assert (await found(node, poison)).state == MessageState.DEAD


async def test_the_last_attempt_may_still_be_acknowledged(node: MeshNode) -> None:
    await node.messages.send("z", 1, sender="a", max_attempts=1)
    (held,) = await node.messages.inbox("z")
    assert await node.messages.poll_inbox_from_db("z") == []  # which buries nothing that is claimed
    await node.messages.ack(held)
    assert await node.messages.queries.counts() == {"acked": 1}


async def test_by_default_it_is_tried_again_after_longer_and_longer_times(local: MeshNode) -> None:
    sent = await local.messages.send("z", 1, sender="a")
    pauses = []
    for _ in range(MAX_ATTEMPTS - 1):
        (held,) = await local.messages.inbox("z")
        before = await database_ms(local)
        await local.messages.nack(held)
        not_before = (await found(local, sent)).not_before_ms
        assert not_before is not None
        pauses.append((not_before - before) // 1_000)
        await come_due(local)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("retry_in", [-0.1, 86_401.0, float("nan"), float("inf")])
async def test_a_time_that_makes_no_sense_is_refused_and_changes_nothing(
    local: MeshNode, retry_in: float
) -> None:
    await local.messages.send("z", 1, sender="a")
    (held,) = await local.messages.inbox("z")
    with pytest.raises(BadValue):
        await local.messages.nack(held, retry_in=retry_in)
    await local.messages.ack(held)


async def test_sent_again_a_dead_letter_has_all_its_attempts(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a", max_attempts=2)
    for _ in range(2):
        (held,) = await node.messages.poll_inbox_from_db("z")
        await node.messages.nack(held, retry_in=0)
    with pytest.raises(NotHolder):
        await node.messages.ack(held)
    await node.messages.queries.retry(sent.message_uuid)
    for attempt in (1, 2):
        (held,) = await node.messages.poll_inbox_from_db("z")
        assert held.delivery_attempts == attempt
        await node.messages.nack(held, retry_in=0)
    assert await node.messages.queries.counts() == {"dead": 1}
    await node.messages.queries.retry(sent.message_uuid)
    (held,) = await node.messages.poll_inbox_from_db("z")
    await node.messages.ack(held)
    assert await node.messages.queries.counts() == {"acked": 1}


async def test_only_dead_letters_are_sent_again(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a")
    for message_uuid in (sent.message_uuid, "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        with pytest.raises(NotKnown):
            await node.messages.queries.retry(message_uuid)
    (held,) = await node.messages.inbox("z")
    await node.messages.ack(held)
    with pytest.raises(NotKnown):
        await node.messages.queries.retry(sent.message_uuid)
