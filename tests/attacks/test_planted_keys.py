"""Planted keys: a key in a table counts only if it opened the chain, or the owner signed for it."""

from __future__ import annotations

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.messages.messaging import bodies
from tests.support.nodes.town import assert_whole
from tests.support.oplog.tampering import NOTE
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
