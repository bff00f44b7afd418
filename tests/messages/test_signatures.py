"""Signatures: what is not from whom it names is never delivered, and what is stays so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages.messaging import (
    NodeGroup,
    bodies,
    change,
    crowd_on,
    found,
    next_of,
    row_of,
    settled,
    write,
)
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.tampering import stranger
from tools.homes import FILE
from vox_mesh import Mesh, Message
from vox_mesh.errors import KeyRefused
from vox_mesh.model.messages.records import WIRE_FIELDS, MessageState
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

Forge = Callable[[MeshNode, Message], Awaitable[None]]


async def _insert(node: MeshNode, message: Message) -> None:
    names = ", ".join(WIRE_FIELDS)
    places = ", ".join(f"?{place}" for place in range(3, 3 + len(WIRE_FIELDS)))
    sql = f"INSERT INTO a2a_messages (scope_id, repository_id, {names}) VALUES (?1, ?2, {places})"
    await write(node, sql, *message[: len(WIRE_FIELDS)])


def _changed(**columns: Any) -> Forge:
    async def forge(node: MeshNode, message: Message) -> None:
        await change(node, [message], **columns)

    return forge


async def _by_another_key(node: MeshNode, message: Message) -> None:
    text = message._replace(payload='"another"').signed_text(*node.store.mesh_id)
    await change(node, [message], payload='"another"', signature=stranger().sign(text))


async def _of_another_mesh(node: MeshNode, message: Message) -> None:
    text = message.signed_text("another scope", node.store.writer_id[1])
    await change(node, [message], signature=node.identity.key.sign(text))


async def _signature_of_an_op(node: MeshNode, message: Message) -> None:
    await change(node, [message], signature=node.identity.key.sign(b"something else"))


_FORGERIES = {
    "another payload": _changed(payload='"another"'),
    "another sender": _changed(sender_agent="someone"),
    "another type": _changed(msg_type="order"),
    "another priority": _changed(priority=3),
    "another thread": _changed(thread_id="t"),
    "another time": _changed(hlc="1700000000000-00000-one"),
    "a longer life": _changed(expires_ms=9_999_999_999_999),
    "more attempts": _changed(max_attempts=999),
    "another node": _changed(sender_node="two"),
    "an unknown node": _changed(sender_node="unknown"),
    "another incarnation": _changed(sender_incarnation=99),
    "no signature": _changed(signature=""),
    "no hex": _changed(signature="ed25519:zz"),
    "another key": _by_another_key,
    "another mesh": _of_another_mesh,
    "a signature of something else": _signature_of_an_op,
}


@pytest.mark.parametrize("forgery", _FORGERIES)
async def test_a_changed_message_is_not_delivered_and_is_among_the_dead_letters(
    local: MeshNode, there: Any, forgery: str
) -> None:
    sent = await local.messages.send("z", "true", sender="a")
    await _FORGERIES[forgery](local, sent)
    await local.messages.send("z", "next", sender="b")
    assert bodies(await local.messages.inbox("z")) == ["next"]
    dead = await found(local, sent)
    assert (dead.state, dead.ended_reason) == (MessageState.DEAD, "forged")
    assert sum(local.messages.verifier.forged.values()) == 1


async def test_messages_that_are_sent_together_have_one_signature_and_each_is_checked(tmp_path: Path) -> None:
    async with crowd_on(FILE, tmp_path, None) as crowd:
        node = await crowd.node("one")
        sent = await asyncio.gather(
            *(node.messages.send("z", number, sender=f"a{number}") for number in range(9))
        )
        together = [message.signature.partition("+")[0] for message in sent[1:]]
        assert len({*together}) == 1
        assert sent[0].signature not in together  # no one else was sending when it began
        await change(node, [sent[4]], payload='"another"')
        await change(node, [sent[6]], signature=sent[7].signature)
        assert sorted(bodies(await node.messages.inbox("z", limit=20))) == [0, 1, 2, 3, 5, 7, 8]
        assert await node.messages.queries.counts() == {"delivered": 7, "dead": 2}


async def test_a_message_under_anothers_name_or_signature_is_not_delivered(crowd: NodeGroup) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    sent = await one.messages.send("z", "true", sender="a")
    copied = sent._replace(message_uuid=new_key(), payload='"again"')
    await _insert(one, copied)  # with the signature of the true one
    unsigned = sent._replace(message_uuid=new_key(), sender_agent="b", sender_node="one")
    signature = two.identity.key.sign(unsigned.signed_text(*two.store.mesh_id))
    await _insert(two, unsigned._replace(signature=signature))  # signed, but by another node than it names
    assert bodies(await two.messages.poll_inbox_from_db("z")) == ["true"]
    assert await two.messages.queries.counts() == {"delivered": 1, "dead": 2}


async def test_a_forged_message_sent_again_is_refused_again(node: MeshNode) -> None:
    sent = await node.messages.send("z", 1, sender="a")
    await change(node, [sent], payload="2")
    assert await node.messages.inbox("z") == []
    await node.messages.queries.retry(sent.message_uuid)
    assert await node.messages.poll_inbox_from_db("z") == []
    assert (await found(node, sent)).ended_reason == "forged"


async def test_what_follows_a_forged_message_is_an_attempt_like_any_other(node: MeshNode) -> None:
    forged = await node.messages.send("z", 1, sender="a")
    genuine = await node.messages.send("z", 2, sender="a", max_attempts=2)
    await node.messages.send("z", 3, sender="b")
    await change(node, [forged], payload='"forged"')
    receiving = node.messages.receive("z")
    other = await next_of(receiving)
    assert other.body in (2, 3)
    await receiving.aclose()  # which gives back what no one looked at
    await settled(node)
    assert (await row_of(node, genuine))["delivery_attempts"] >= 0
    if other.body == 2:
        assert other.delivery_attempts == 1


async def test_a_message_is_genuine_on_every_node_as_it_was_written(crowd: NodeGroup) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    sent = await one.messages.send(
        "z",
        {"text": "häß", "n": 1.5},
        sender="a",
        msg_type="order",
        priority=2,
        thread="t",
        correlation="c",
        reply_to=new_key(),
        ttl=1_000,
        ack_within=10,
        max_attempts=3,
        traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01",
    )
    (got,) = await two.messages.poll_inbox_from_db("z")
    assert got[: len(WIRE_FIELDS)] == sent[: len(WIRE_FIELDS)]
    assert (got.sender_node, got.sender_incarnation) == ("one", 1)


async def test_a_message_written_before_its_node_got_another_key_is_still_genuine(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key())
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        async with Mesh.open(shared_mesh.settings("worker")) as worker:
            await worker.messages.send("z", "before", sender="a")
            await worker.oplog.anchor()  # by which its key is known for good
        async with Mesh.open_command(shared_mesh.settings("worker")) as command:
            await command.messages.send("z", "by command", sender="c")
        shared_mesh.forget_key("worker")
        with pytest.raises(KeyRefused):
            async with Mesh.open(shared_mesh.settings("worker")):
                pass
        await owner.roles.rekey("worker")
        async with Mesh.open(shared_mesh.settings("worker")) as worker:
            await worker.messages.send("z", "after", sender="b")
        async with Mesh.open_command(shared_mesh.settings("worker")) as command:
            await command.messages.send("z", "by command again", sender="d")
        said = bodies(await owner.messages.poll_inbox_from_db("z"))
        assert sorted(said) == ["after", "before", "by command", "by command again"]
        assert [report.problem for report in await owner.oplog.verify() if report.problem] == []
