"""Planted keys: a key in a table counts only if it opened the chain, or the owner signed for it."""

from __future__ import annotations

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.messages.messaging import bodies
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.tampering import NOTE, stranger
from vox_mesh import Mesh
from vox_mesh.errors import KeyRefused
from vox_mesh.model.oplog.authorship import OPEN_CHAIN
from vox_mesh.model.oplog.verification import REKEY
from vox_mesh.node import MeshNode


async def received(node: MeshNode, agent: str) -> list[object]:
    await node.store.synced()
    return bodies(await node.messages.poll_inbox_from_db(agent))


async def test_no_forged_message_of_the_owner_is_delivered_by_a_planted_key(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    genuine = await owner.messages.send("z", "genuine", sender="a")
    assert await received(other, "z") == ["genuine"]  # its keys are known, and looked up again below
    for chain in ("owner", "owner/cli"):
        hostile.plant_key(chain)
    hostile.run(
        "UPDATE mesh_heartbeats SET public_key = ?3 WHERE scope_id = ?1 AND repository_id = ?2",
        hostile.key.public,
    )
    for agent in ("x", "y"):
        hostile.plant_message(genuine._replace(receiver_agent=agent), "forged")
    assert await received(other, "x") == []
    assert await received(owner, "y") == []
    assert other.messages.verifier.forged["owner"] == 1


async def test_a_node_that_has_only_joined_cannot_be_spoken_for(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    like = await owner.messages.send("elsewhere", "", sender="a")
    hostile.plant_key("other")
    hostile.plant_message(
        like._replace(sender_node="other", receiver_agent="z", hlc=like.hlc.replace("owner", "other")),
        "forged",
    )
    assert await received(owner, "z") == []


async def test_no_planted_chain_of_commands_makes_another_key_speak_for_a_node(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    like = await other.messages.send("elsewhere", "", sender="a")
    for chain in ("other", "other/cli"):
        hostile.plant_key(chain)
    hostile.plant_entry("other/cli", OPEN_CHAIN, {"key": hostile.key.public})
    hostile.plant_message(like._replace(receiver_agent="z"), "forged")
    assert await received(owner, "z") == []
    problems = {each.node_id: each.problem for each in await owner.oplog.verify() if each.problem}
    assert problems.keys() == {"other", "other/cli"}
    assert problems["other/cli"] == f"the key {hostile.key.public} is none of the node's"


async def test_verifying_reports_a_planted_key(owner: MeshNode, hostile: HostileWriter) -> None:
    await assert_whole(owner)
    hostile.plant_key("owner")
    await owner.store.synced()
    (report,) = [each for each in await owner.oplog.verify() if each.problem]
    assert (report.node_id, report.seq) == ("owner", 0)
    assert report.problem == f"the key {hostile.key.public} was planted: it did not open the chain"


async def test_an_entry_signed_with_a_planted_later_key_is_not_its_authors(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    seq = len([each async for page in owner.oplog.entries("owner") for each in page]) + 1
    hostile.plant_key("owner", seq)
    hostile.plant_entry("owner", NOTE.name, {"text": "forged"})
    # An acceptance of that key, signed with the key itself.
    hostile.plant_entry("owner", REKEY, {"node": "owner", "key": hostile.key.public, "from": {"owner": seq}})
    await other.store.synced()
    (forged,) = await other.oplog.tail(1, node_id="owner", kind=NOTE.name)
    assert not await other.oplog.is_authentic(forged)
    assert [each.problem is None for each in await other.oplog.verify("owner")] == [False]


async def test_planted_later_keys_keep_no_node_from_joining_again(
    owner: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    async with Mesh.open(shared_mesh.settings("third")) as third:
        await third.messages.send("z", "before", sender="a")
        key = third.identity.key.public
    for chain in ("third", "third/cli"):
        hostile.plant_key(chain, 2)
        hostile.plant_key(chain, 10**15)
    # An acceptance that the owner has not signed.
    payload = {"node": "third", "key": hostile.key.public, "from": {"third": 2, "third/cli": 2}}
    hostile.plant_entry("stranger", REKEY, payload)
    async with Mesh.open_command(shared_mesh.settings("third")) as command:
        await command.messages.send("z", "from a command", sender="a")
    for chain in ("third", "third/cli"):
        hostile.plant_key(chain, 10**15)
    async with Mesh.open(shared_mesh.settings("third")) as third:
        await third.messages.send("z", "after", sender="a")
        assert await received(owner, "z") == ["before", "from a command", "after"]
    keys = hostile.run(
        "SELECT DISTINCT public_key FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2 "
        "AND node_id IN ('third', 'third/cli')"
    )
    assert keys == [[key]]


async def test_a_node_whose_key_the_owner_replaced_does_not_bring_its_own_back(
    owner: MeshNode, shared_mesh: SharedMesh
) -> None:
    async with Mesh.open(shared_mesh.settings("third")) as third:
        await third.messages.send("z", "before", sender="a")
    await owner.roles.rekey("third", stranger().public)
    with pytest.raises(KeyRefused):
        async with Mesh.open(shared_mesh.settings("third")):
            pass


async def test_a_chain_of_commands_that_another_key_opened_ends_with_the_start_of_its_node(
    owner: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    hostile.plant_key("third/cli")
    hostile.plant_entry("third/cli", OPEN_CHAIN, {"key": hostile.key.public})
    genuine = await owner.messages.send("elsewhere", "", sender="a")
    like = genuine._replace(
        sender_node="third", receiver_agent="z", hlc=genuine.hlc.replace("owner", "third")
    )
    hostile.plant_message(like, "the name is free")
    assert await received(owner, "z") == ["the name is free"]
    async with Mesh.open(shared_mesh.settings("third")) as third:
        await third.messages.send("z", "mine now", sender="c")
        hostile.plant_message(like._replace(sender_agent="b"), "forged")
        assert await received(owner, "z") == ["mine now"]
