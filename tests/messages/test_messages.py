"""Sending: what is sent is one message, to whom it is for, and says what it said."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.messages.messaging import (
    PATIENCE_S,
    NodeGroup,
    bodies,
    found,
    ids,
    next_of,
    row_of,
    settled,
    write,
)
from tests.support.oplog.rivals import MEMORIES, at, overtaken
from vox_mesh import DeferToAgent, Message
from vox_mesh.errors import BadValue, MessageTaken
from vox_mesh.model.messages.records import MAX_NAME, MAX_PAYLOAD_BYTES, WRITTEN, MessageState
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"

_WEIRD: list[Any] = [
    None,
    True,
    0,
    -(2**53) + 1,
    1.5,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    "",
    "häß 漢字 🛰 \u202e \u2028 \ufeff",
    "\x00\x01\x1f\x7f\\ \" ' ; -- %s ?1 :a $x",
    {"": [], "a": {}, "z": {"ä": 1, "😀": 2, "\ufb33": 3}},
    [[[[[[]]]]], {"deep": [{"er": [None]}]}],
    "'; DROP TABLE a2a_messages; --",
]


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


async def test_what_is_sent_is_received_as_it_was_said(any_node: MeshNode) -> None:
    for body in (*_WEIRD, nested(63)):
        await any_node.messages.send("z", body, sender="one by one")
    await asyncio.gather(*(any_node.messages.send("z", body, sender="at once") for body in _WEIRD))
    claimed = await any_node.messages.inbox("z")
    assert bodies(each for each in claimed if each.sender_agent == "one by one") == [*_WEIRD, nested(63)]
    assert bodies(each for each in claimed if each.sender_agent == "at once") == _WEIRD
    await any_node.messages.ack(*claimed)


_NO_JSON: dict[str, Any] = {
    "not a number": float("nan"),
    "endless": [1, {"a": float("-inf")}],
    "too large to be exact": 2**53,
    "half a character": "\ud800",
    "a number as a name": {1: 2},
    "a set": {1, 2},
    "bytes": b"x",
    "too deep": nested(2_000),
}


@pytest.mark.parametrize("what", _NO_JSON)
async def test_what_is_no_json_is_refused_and_not_sent(local: MeshNode, what: str) -> None:
    with pytest.raises(BadValue):
        await local.messages.send("z", _NO_JSON[what], sender="a")
    assert await local.messages.queries.counts() == {}


async def test_a_body_has_at_most_this_many_bytes(any_node: MeshNode) -> None:
    largest = "x" * (MAX_PAYLOAD_BYTES - 2)
    of_two_bytes = "ä" * (MAX_PAYLOAD_BYTES // 2 - 1)
    for body in (largest, of_two_bytes):
        await any_node.messages.send("z", body, sender="a")
        with pytest.raises(BadValue, match=str(MAX_PAYLOAD_BYTES + 1)):
            await any_node.messages.send("z", body + "y", sender="a")
    assert bodies(await any_node.messages.inbox("z")) == [largest, of_two_bytes]


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\nb", "\x00", "*", "role:x", "x" * (MAX_NAME + 1), "\u202e"]
)
async def test_what_is_no_name_is_refused(local: MeshNode, name: str) -> None:
    with pytest.raises(BadValue):
        await local.messages.send("z", 1, sender=name or " ")
    if not name.startswith("role:"):
        with pytest.raises(BadValue):
            await local.messages.send(name, 1, sender="a")
    with pytest.raises(BadValue):
        await local.messages.send(f"role:{name}", 1, sender="a")
    with pytest.raises(BadValue):
        await local.messages.inbox("z", roles=[name])


@pytest.mark.parametrize(
    "option",
    [
        {"priority": -1},
        {"priority": 4},
        {"max_attempts": 0},
        {"max_attempts": 1_001},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": 400 * 86_400},
        {"ack_within": 0},
        {"msg_type": ""},
        {"msg_type": "x" * (MAX_NAME + 1)},
        {"thread": "a\nb"},
        {"correlation": ""},
        {"reply_to": "not an id"},
        {"key": "01arz3ndektsv4rrffq69g5fav"},
        {"traceparent": "00-zz"},
    ],
    ids=str,
)
async def test_an_option_out_of_bounds_is_refused(local: MeshNode, option: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        await local.messages.send("z", 1, sender="a", **option)
    assert await local.messages.queries.counts() == {}


async def test_names_up_to_their_bound_are_taken(node: MeshNode) -> None:
    longest = "ä" * MAX_NAME
    await node.messages.send(
        longest, 1, sender=longest, msg_type=longest, thread=longest, correlation=longest
    )
    await node.messages.send(f"role:{longest}", 2, sender=longest)
    assert bodies(await node.messages.inbox(longest, roles=[longest])) == [1, 2]


# --- once -----------------------------------------------------------------------------------------------


async def test_sent_again_under_the_same_key_it_is_one_message(any_node: MeshNode) -> None:
    key = new_key()
    sending = [any_node.messages.send("z", {"a": 1}, sender="a", key=key) for _ in range(3)]
    assert set(ids([await sending[0], *await asyncio.gather(*sending[1:])])) == {key}
    (held,) = await any_node.messages.inbox("z")
    await any_node.messages.ack(held)
    await any_node.messages.send("z", {"a": 1}, sender="a", key=key)  # also when it is done with
    assert await any_node.messages.poll_inbox_from_db("z") == []


async def test_another_message_under_the_same_key_is_refused(crowd: NodeGroup) -> None:
    one, other = await crowd.node("one"), await crowd.node("other")
    sent = await one.messages.send("z", 1, sender="a")
    key = sent.message_uuid
    for node, to, body, sender in ((one, "z", 2, "a"), (other, "y", 1, "a"), (other, "z", 1, "b")):
        with pytest.raises(MessageTaken) as refused:
            await node.messages.send(to, body, sender=sender, key=key)
        assert key in refused.value.line
    assert bodies(await one.messages.queries.listed()) == [1]


# --- to whom --------------------------------------------------------------------------------------------


async def test_of_several_who_have_a_role_each_message_goes_to_one(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two")]
    senders = [f"s{number}" for number in range(8)]
    for number in range(3):
        for sender in senders:
            await nodes[0].messages.send("role:reviewer", number, sender=sender)
    seen: Counter[str] = Counter()
    acked: list[Message] = []
    done = asyncio.Event()

    async def review(node: MeshNode) -> None:
        async for message in node.messages.receive(node.identity.node_id, roles=["reviewer"], at_once=2):
            seen[message.message_uuid] += 1
            await node.messages.ack(message)
            acked.append(message)
            if len(acked) == 24:
                done.set()
            for each in nodes:
                each.store._changes.bump()  # in memory no node hears of another's commits

    loops = [asyncio.create_task(review(node)) for node in nodes]
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    assert set(seen.values()) == {1}
    for sender in senders:
        assert bodies(each for each in acked if each.sender_agent == sender) == [0, 1, 2]


async def test_an_agent_without_the_role_does_not_get_what_is_for_it(node: MeshNode) -> None:
    await node.messages.send("role:reviewer", 1, sender="a")
    assert await node.messages.poll_inbox_from_db("reviewer") == []
    assert await node.messages.poll_inbox_from_db("reviewer", roles=["writer"]) == []
    assert bodies(await node.messages.poll_inbox_from_db("anybody", roles=["reviewer"])) == [1]


async def test_a_broadcast_reaches_each_who_received_lately_once_and_not_its_sender(node: MeshNode) -> None:
    for agent, roles in (("a", ["r"]), ("b", []), ("c", [])):
        receiving = node.messages.receive(agent, roles=roles)
        await node.messages.send(agent, "wake up", sender="x")
        await node.messages.ack(await next_of(receiving))
        await settled(node)
        await receiving.aclose()
    long_ago = await node.nodes.now_ms() - 8 * 86_400_000
    last_seen = "UPDATE a2a_inboxes SET seen_ms = ?3 WHERE scope_id = ?1 AND repository_id = ?2"
    await write(node, f"{last_seen} AND receiver_agent = 'c'", long_ago)
    await node.store.synced()
    sent = await node.messages.broadcast("hear", sender="a", priority=3)
    assert [each.receiver_agent for each in sent] == ["b"]
    sent = await node.messages.broadcast("hear", sender="x")
    assert [each.receiver_agent for each in sent] == ["a", "b"]
    assert len({each.correlation_id for each in sent}) == 1
    assert bodies(await node.messages.inbox("b")) == ["hear", "hear"]
    with pytest.raises(BadValue):
        await node.messages.send("*", 1, sender="a")


async def test_a_reply_goes_to_the_sender_in_its_thread(node: MeshNode) -> None:
    asked = await node.messages.send("z", "?", sender="a", correlation="c", traceparent=_TRACE)
    (question,) = await node.messages.inbox("z")
    await node.messages.reply(question, "!")
    (answer,) = await node.messages.inbox("a")
    assert (answer.sender_agent, answer.reply_to, answer.thread_id) == (
        "z",
        asked.message_uuid,
        question.thread,
    )
    assert (answer.correlation_id, answer.traceparent) == ("c", _TRACE)
    await node.messages.reply(answer, "!!")
    await node.messages.ack(question)
    (last,) = await node.messages.inbox("z")
    assert (last.thread_id, last.reply_to) == (asked.message_uuid, answer.message_uuid)
    assert bodies(await node.messages.queries.listed(thread=asked.message_uuid)) == ["!!", "!", "?"]
    address = f"hmmm://thread/{asked.message_uuid}"
    assert (await node.messages.send("z", "more", sender="a", thread=address)).thread_id == asked.message_uuid
    assert len(await node.messages.queries.listed(thread=address)) == 4


async def test_a_reply_to_what_was_for_a_role_is_by_anyone_who_answers(local: MeshNode) -> None:
    await local.messages.send("role:reviewer", "?", sender="a", thread="t")
    (question,) = await local.messages.inbox("z", roles=["reviewer"])
    assert (await local.messages.reply(question, "!", sender="z")).sender_agent == "z"
    by_default = await local.messages.reply(question, "!")
    assert (by_default.sender_agent, by_default.thread_id) == (local.identity.node_id, "t")


async def test_the_agent_that_a_conflict_is_deferred_to_is_notified(node: MeshNode) -> None:
    base, _ = await overtaken(node, "k")
    await node.occ.write(MEMORIES, at("k"), {"content": "left"}, base, strategy=DeferToAgent("judge"))
    (conflict,) = await node.conflicts.list()
    (reported,) = await node.messages.poll_inbox_from_db("judge")
    assert reported.msg_type == "conflict"
    assert reported.body == {
        "conflict_id": conflict.conflict_id,
        "table_name": MEMORIES,
        "row_key": conflict.row_key,
    }


async def test_what_is_sent_is_stored_with_all_that_was_said_of_it(node: MeshNode) -> None:
    before = await node.nodes.now_ms()
    sent = await node.messages.send("z", 1, sender="a", ttl=60, ack_within=5, max_attempts=3, priority=2)
    row = await row_of(node, sent)
    assert (row["message_uuid"], row["sender_agent"], row["receiver_agent"]) == (sent.message_uuid, "a", "z")
    assert (row["state"], row["acknowledged"], row["claim_owner"]) == ("stored", 0, None)
    assert (row["max_attempts"], row["priority"], row["delivery_attempts"]) == (3, 2, 0)
    assert before - 1_000 <= row["expires_ms"] - 60_000 <= await node.nodes.now_ms()
    assert row["expires_ms"] - row["ack_by_ms"] == 55_000
    assert (await found(node, sent)).state == MessageState.STORED


async def test_messages_that_are_stored_together_keep_what_only_some_of_them_have(node: MeshNode) -> None:
    key = new_key()
    options: list[dict[str, Any]] = [
        {"thread": "review"},
        {"correlation": "r2"},
        {"reply_to": key},
        {"ttl": 60},
        {"ack_within": 5},
        {"traceparent": _TRACE},
        {"to": "role:qa"},
        {"to": "role:qa", "ordered": True},
        {},
    ]
    await node.messages.send("z", 0, sender="a")  # opens the chain, for which the others would wait
    for number, each in enumerate(options):
        each |= {"to": each.get("to", "z"), "body": 1, "sender": f"a{number}"}
    sent = await asyncio.gather(*(node.messages.send(**each) for each in options))
    assert [(await found(node, each))[:WRITTEN] for each in sent] == [each[:WRITTEN] for each in sent]
    rows = [await row_of(node, each) for each in sent]
    assert [row["is_ordered"] for row in rows] == [1, 1, 1, 1, 1, 1, 0, 1, 1]
    rare = ("thread_id", "correlation_id", "reply_to", "expires_ms", "ack_by_ms", "traceparent")
    assert [[name for name in rare if row[name] is not None] for row in rows] == [
        *([name] for name in rare),
        [],
        [],
        [],
    ]
