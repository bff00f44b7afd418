"""Replaced keys: a thief who has the old key of a node, and writes to the database, speaks for it no more."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.oplog.test_planted_keys import received
from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.messages.messaging import bodies, found
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.tampering import NOTE, hashed, stranger
from tools.homes import FILE
from vox_mesh import Mesh, Message
from vox_mesh.errors import KeyRefused, Refused, SenderRefused
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.jobs.job_end import Condition
from vox_mesh.model.messages.records import MessageState
from vox_mesh.model.nodes.node_address import NodeAddress, SignedAddress
from vox_mesh.model.oplog.authorship import OPEN_CHAIN
from vox_mesh.model.oplog.chain import signed_text
from vox_mesh.model.oplog.verification import REKEY
from vox_mesh.node import MeshNode, open_node
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store import new_key

VICTIM = "third"
REPLACED = "it was signed with a replaced key of its node"


@pytest.fixture
def shared_mesh(tmp_path: Path) -> SharedMesh:
    """A mesh on a file: a server makes no difference to what is believed."""
    return SharedMesh(FILE, tmp_path, None, new_key())


@dataclass(frozen=True)
class Theft:
    """A node whose key was stolen while one of its messages waited, and the thief."""

    thief: HostileWriter
    sample: Message


@pytest.fixture
async def theft(owner: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter) -> Theft:
    """A node that has run no command; the thief has a copy of its key."""
    async with Mesh.open(shared_mesh.settings(VICTIM)) as victim:
        victim.oplog.register(NOTE)
        await victim.oplog.append(NOTE.name, {"text": "before"})
        sample = await victim.messages.send("z", "before", sender="a")
        hostile.key = victim.identity.key
    return Theft(hostile, sample)


@pytest.fixture
async def receiver(shared_mesh: SharedMesh, theft: Theft) -> AsyncIterator[MeshNode]:
    """A node that knows the stolen key already; each look at its clock is a second later."""
    ticks = itertools.count(1.0)
    node = await open_node(shared_mesh.settings("receiver"), Dependencies(monotonic=lambda: next(ticks)))
    try:
        theft.thief.plant_message(theft.sample._replace(receiver_agent="early"), "not yet replaced")
        assert await received(node, "early") == ["not yet replaced"]
        yield node
    finally:
        await node.close()


async def rekey_as_an_earlier_version(owner: MeshNode, new_key: str) -> None:
    """Accept a key as versions did that named only chains with entries, and no messages."""
    entries = [each async for page in owner.oplog.entries(VICTIM) for each in page]
    since = {VICTIM: len(entries) + 1}
    await owner.oplog.append(REKEY, {"node": VICTIM, "key": new_key, "from": since})


# --- ops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_earlier_version", [False, True])
async def test_a_replaced_key_opens_no_chain_of_commands(
    owner: MeshNode, receiver: MeshNode, theft: Theft, is_earlier_version: bool
) -> None:
    if is_earlier_version:
        await rekey_as_an_earlier_version(owner, stranger().public)
    else:
        await owner.roles.rekey(VICTIM, stranger().public)
    chain = f"{VICTIM}/cli"
    theft.thief.run(
        "INSERT OR REPLACE INTO node_keys VALUES (?1, ?2, ?3, 1, ?4)", chain, theft.thief.key.public
    )
    theft.thief.plant_entry(chain, OPEN_CHAIN, {"key": theft.thief.key.public})
    theft.thief.plant_entry(chain, NOTE.name, {"text": "forged"})
    for node in (owner, receiver):
        await node.store.synced()
        (forged,) = await node.oplog.tail(1, node_id=chain, kind=NOTE.name)
        assert not await node.oplog.is_authentic(forged)
    (report,) = [each for each in await owner.oplog.verify() if each.problem]
    assert (report.node_id, report.seq, report.problem) == (chain, 1, REPLACED)


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_replaced_key_appends_nothing_to_the_chain_of_its_node(
    owner: MeshNode, receiver: MeshNode, theft: Theft, is_recorded: bool
) -> None:
    await owner.roles.rekey(VICTIM, stranger().public)
    if not is_recorded:
        theft.thief.run(
            "DELETE FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2 "
            "AND node_id = ?3 AND from_seq > 1",
            VICTIM,
        )
    theft.thief.plant_entry(VICTIM, NOTE.name, {"text": "forged"})
    await receiver.store.synced()
    before, forged = await receiver.oplog.tail(2, node_id=VICTIM, kind=NOTE.name)
    assert await receiver.oplog.is_authentic(before)
    assert not await receiver.oplog.is_authentic(forged)
    (report,) = [each for each in await owner.oplog.verify() if each.problem]
    assert (report.node_id, report.seq, report.op_id) == (VICTIM, forged.seq, forged.op_id)
    assert report.problem == REPLACED


async def test_a_planted_gap_leaves_no_room_for_a_replaced_key(
    owner: MeshNode, receiver: MeshNode, theft: Theft
) -> None:
    for chain in (VICTIM, f"{VICTIM}/cli"):
        theft.thief.plant_entry(chain, NOTE.name, {}, seq=10**6)
    await owner.roles.rekey(VICTIM, stranger().public)
    theft.thief.run("DELETE FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND seq = 1000000")
    for chain in (VICTIM, f"{VICTIM}/cli"):
        forged = theft.thief.plant_entry(chain, NOTE.name, {"text": "forged"})
        await receiver.store.synced()
        (entry,) = await receiver.oplog.tail(1, node_id=chain)
        assert entry.op_id == forged.op_id
        assert not await receiver.oplog.is_authentic(entry)


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_replaced_key_rewrites_no_entry(
    owner: MeshNode, receiver: MeshNode, theft: Theft, is_last: bool
) -> None:
    await owner.roles.rekey(VICTIM, stranger().public)
    entries = [each async for page in owner.oplog.entries(VICTIM) for each in page]
    for entry in entries:
        assert await receiver.oplog.is_authentic(entry)
    victim = entries[-1 if is_last else 1]
    forged = hashed(victim._replace(kind=NOTE.name, payload='{"text":"forged"}'))
    theft.thief.run(
        "UPDATE agent_oplog SET kind = ?3, payload = ?4, hash = ?5, signature = ?6 WHERE id = ?7 "
        "AND scope_id = ?1 AND repository_id = ?2",
        *(forged.kind, forged.payload, forged.hash),
        theft.thief.key.sign(signed_text(forged.hash, theft.thief.mesh[0])),
        forged.id,
    )
    await receiver.store.synced()
    (entry,) = [each for each in await receiver.oplog.tail(9, node_id=VICTIM) if each.id == forged.id]
    assert entry.payload == forged.payload
    assert not await receiver.oplog.is_authentic(entry)
    condition = Condition(entry.op_id, "op")
    assert await receiver.jobs.authorship.ends.unmet({"job": [condition]}) == {"job": condition}
    assert [each.node_id for each in await owner.oplog.verify() if each.problem] == [VICTIM]


# --- messages -------------------------------------------------------------------------------------


def _backdated(message: Message) -> Message:
    time = Hlc.parse(message.hlc)
    return message._replace(hlc=str(time._replace(wall_ms=time.wall_ms - 60_000)))


async def test_no_message_of_a_replaced_key_is_delivered_whatever_its_date(
    owner: MeshNode, receiver: MeshNode, theft: Theft
) -> None:
    await owner.roles.rekey(VICTIM, stranger().public)
    for agent in ("x", "y"):
        theft.thief.plant_message(theft.sample._replace(receiver_agent=agent), "forged")
        theft.thief.plant_message(_backdated(theft.sample)._replace(receiver_agent=agent), "forged and old")
    await owner.store.synced()
    (problem,) = [each.problem for each in await owner.oplog.verify() if each.problem]
    assert str(problem).startswith(f"messages of {VICTIM} signed with a replaced key: 4, first ")
    assert await received(receiver, "x") == []
    assert await received(owner, "y") == []
    assert receiver.messages.verifier.forged[VICTIM] == 2
    assert await received(receiver, "z") == ["before"]  # which waited when the key was replaced


async def test_a_replaced_message_is_not_delivered_in_place_of_one_that_waited(
    owner: MeshNode, receiver: MeshNode, theft: Theft
) -> None:
    await owner.roles.rekey(VICTIM, stranger().public)
    forged = theft.sample._replace(payload='"forged"')
    signature = theft.thief.key.sign(forged.signed_text(*theft.thief.mesh))
    theft.thief.run(
        "UPDATE a2a_messages SET payload = ?3, signature = ?4 "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?5",
        *(forged.payload, signature, forged.message_uuid),
    )
    assert await received(receiver, "z") == []
    dead = await found(owner, theft.sample)
    assert (dead.state, dead.ended_reason) == (MessageState.DEAD, "forged")


async def test_a_key_that_an_earlier_version_replaced_counts_for_messages_dated_before(
    owner: MeshNode, receiver: MeshNode, theft: Theft, shared_mesh: SharedMesh
) -> None:
    new = stranger().public
    await rekey_as_an_earlier_version(owner, new)
    later = theft.sample._replace(receiver_agent="x", hlc=str(Hlc(owner.clock.now_ms, 0, VICTIM)))
    theft.thief.plant_message(later, "forged")
    assert await received(receiver, "x") == []
    assert await received(receiver, "z") == ["before"]
    await owner.roles.rekey(VICTIM, new)  # the same key again: from now on the time does not count
    theft.thief.plant_message(_backdated(theft.sample)._replace(receiver_agent="y"), "forged and old")
    assert await received(receiver, "y") == []


async def test_no_message_of_a_replaced_key_is_relayed(
    owner: MeshNode, receiver: MeshNode, theft: Theft
) -> None:
    await owner.roles.rekey(VICTIM, stranger().public)
    await receiver.store.synced()
    reception = Reception(receiver.store, receiver.messages, receiver.clock)
    forged = theft.sample._replace(payload='"forged"', hlc=str(Hlc(receiver.clock.now_ms, 0, VICTIM)))
    forged = forged._replace(signature=theft.thief.key.sign(forged.signed_text(*theft.thief.mesh)))
    with pytest.raises(SenderRefused):
        await reception.take([forged], stored=False)


async def test_a_replaced_key_signs_no_address_of_its_node(
    owner: MeshNode, receiver: MeshNode, theft: Theft
) -> None:
    address = NodeAddress(VICTIM, "http://192.0.2.1:7000", "t", "m")
    signed = SignedAddress(address, theft.thief.key.sign(address.signed_text(*theft.thief.mesh)))
    assert await receiver.messages.verifier.is_address_genuine(signed)
    await owner.roles.rekey(VICTIM, stranger().public)
    await receiver.store.synced()
    assert not await receiver.messages.verifier.is_address_genuine(signed)


# --- what still works -----------------------------------------------------------------------------


async def test_a_node_with_a_new_key_writes_in_all_of_its_chains(
    owner: MeshNode, theft: Theft, shared_mesh: SharedMesh
) -> None:
    for text in ("first", "second"):
        shared_mesh.forget_key(VICTIM)
        with pytest.raises(KeyRefused):
            async with Mesh.open(shared_mesh.settings(VICTIM)):
                pass
        await owner.roles.rekey(VICTIM)
        async with Mesh.open(shared_mesh.settings(VICTIM)) as victim:
            await victim.messages.send("z", text, sender="b")
        async with Mesh.open_command(shared_mesh.settings(VICTIM)) as command:
            await command.oplog.anchor()
            await command.messages.send("z", f"{text}, by a command", sender="c")
    said = await received(owner, "z")
    assert sorted(map(str, said)) == [
        "before",
        "first",
        "first, by a command",
        "second",
        "second, by a command",
    ]
    await assert_whole(owner)


async def test_a_key_is_not_replaced_while_its_node_still_sends(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.messages.send("z", "one", sender="a")
    read = owner.roles._read

    async def read_while_it_sends(name: str, *values: Any) -> Any:
        rows = await read(name, *values)
        if name == "mail_of":
            await other.messages.send("z", "two", sender="a")
        return rows

    monkeypatch.setattr(owner.roles, "_read", read_while_it_sends)
    with pytest.raises(Refused, match="node_still_writes"):
        await owner.roles.rekey("other", stranger().public)
    assert bodies(await owner.messages.poll_inbox_from_db("z")) == ["one", "two"]
