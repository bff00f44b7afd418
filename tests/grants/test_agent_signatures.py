"""Signatures of agents on messages: they are shown to the receiver, and required in a strict mesh."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.messages.messaging import change
from tests.support.messages.relaying import AGENT, Pair, letter, open_pair
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.tampering import stranger
from tools.homes import FILE
from vox_mesh import Mesh, Message
from vox_mesh.client import AgentClient
from vox_mesh.errors import AgentSignatureMissing, AgentSignatureWrong, BadValue
from vox_mesh.http.relay.agent_signatures import AGENT_SIGNATURES, header_of
from vox_mesh.http.relay.endpoint import wire
from vox_mesh.model.messages.agent_signature import AgentStatement, SignedByAgent
from vox_mesh.node import MeshNode
from vox_mesh.nodes.agent_keys import agent_key
from vox_mesh.store import new_key

ANN: Final = stranger()
BOB: Final = stranger()

_MOVED: Final[dict[str, dict[str, Any]]] = {
    "another recipient": {"receiver_agent": "boss"},
    "another body": {"payload": '"no"'},
    "another type": {"msg_type": "order"},
    "another sender": {"sender_agent": "bob"},
    "another id": {"message_uuid": new_key()},
    "another mesh": {"scope_id": "another"},
}
"""What ann has signed instead of the message that carries her signature."""


@pytest.fixture
def shared_mesh(tmp_path: Path) -> SharedMesh:
    """A mesh in a file: what is signed does not depend on the home."""
    return SharedMesh(FILE, tmp_path, None, new_key())


@pytest.fixture
async def admitted(owner: MeshNode) -> MeshNode:
    """The owner's node; ann and bob are admitted with keys, eve without."""
    for agent, key in (("ann", ANN), ("bob", BOB), ("eve", None)):
        await owner.grants.admit(agent, None if key is None else key.public)
        await owner.grants.issue(agent, ["message.send"])
    return owner


async def shown(node: MeshNode, message: Message) -> str:
    """What the receiver of a message is shown."""
    (received,) = await node.messages.inbox(message.receiver_agent)
    await node.messages.ack(received)
    assert received.message_uuid == message.message_uuid
    assert (await node.messages.queries.get(message.message_uuid)).signed_by_agent == received.signed_by_agent
    return received.signed_by_agent


async def test_the_receiver_is_shown_whether_the_sender_has_signed(
    admitted: MeshNode, other: MeshNode
) -> None:
    send = admitted.messages.send
    assert await shown(other, await send("z", "yes", sender="ann", signed_by=ANN)) == SignedByAgent.VERIFIED
    assert await shown(other, await send("z", "yes", sender="ann")) == SignedByAgent.ABSENT
    assert await shown(other, await send("z", "yes", sender="ann", signed_by=BOB)) == SignedByAgent.WRONG
    assert await shown(other, await send("z", "yes", sender="eve", signed_by=BOB)) == SignedByAgent.ABSENT
    tampered = await send("z", "yes", sender="ann", signed_by=ANN)
    await change(admitted, [tampered], agent_signature=BOB.sign(b"anything"))
    assert await shown(other, tampered) == SignedByAgent.WRONG
    with pytest.raises(BadValue, match="agent_signature must be"):
        await send("z", "yes", sender="ann", signed_by="ed25519:zz")


def moved(node: MeshNode, message_uuid: str, what: str) -> str:
    """A signature by ann of something else than her message `yes` to z under this id."""
    about = AgentStatement(*node.store.mesh_id, message_uuid, "ann", "z", "message", '"yes"')
    return about._replace(**_MOVED[what]).sign(ANN)


async def test_a_signature_counts_for_nothing_else(admitted: MeshNode) -> None:
    for what in _MOVED:
        key = new_key()
        signature = moved(admitted, key, what)
        sent = await admitted.messages.send("z", "yes", sender="ann", key=key, signed_by=signature)
        assert await shown(admitted, sent) == SignedByAgent.WRONG, what


async def test_a_strict_mesh_takes_no_message_that_its_sender_has_not_signed(admitted: MeshNode) -> None:
    await admitted.grants.set_strict(strict=True)
    send = admitted.messages.send
    with pytest.raises(AgentSignatureMissing, match="not signed by its key"):
        await send("z", "yes", sender="ann")
    for what in _MOVED:
        key = new_key()
        with pytest.raises(AgentSignatureWrong):
            await send("z", "yes", sender="ann", key=key, signed_by=moved(admitted, key, what))
    assert await admitted.messages.inbox("z") == []
    assert await shown(admitted, await send("z", "yes", sender="ann", signed_by=ANN)) == "verified"
    assert await shown(admitted, await send("z", "yes", sender="eve")) == "absent"  # it has no key
    assert await shown(admitted, await send("z", "yes", sender="owner")) == "absent"  # as it needs no grant


async def test_the_relay_carries_signatures_in_a_header(tmp_path: Path) -> None:
    async with open_pair(SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)) as pair:
        await pair.sender.grants.admit("coder", ANN.public)
        await pair.sender.grants.issue("coder", ["message.send"])
        plain, message = letter(pair.sender), letter(pair.sender)
        signed = await pair.sender.messages.agent_signatures.add(message, ANN)
        headers = pair.headers(stored=False) | header_of([plain, signed])
        for wrong in ("", ",,", "no,base64!", ",c2hvcnQ="):
            refused = await pair.post([wire(plain), wire(signed)], headers | {AGENT_SIGNATURES: wrong})
            assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, wrong
        taken = await pair.post([wire(plain), wire(signed)], headers)
        assert taken.status_code == HTTPStatus.OK, taken.text
        found = [await pair.next_message() for _ in range(2)]
        assert {each.message_uuid: each.signed_by_agent for each in found} == {
            plain.message_uuid: "absent",
            signed.message_uuid: "verified",
        }
        await _assert_relayed_by_nodes(pair)


async def _assert_relayed_by_nodes(pair: Pair) -> None:
    await pair.sender.messages.send(AGENT, "relayed", sender="coder", signed_by=ANN)
    assert (await pair.next_message()).signed_by_agent == "verified"


async def test_a_client_signs_with_the_key_of_its_agent(tmp_path: Path, folder: Path) -> None:
    key = agent_key(tmp_path, "coder", create=True)
    shared = SharedMesh(FILE, folder, None, new_key(), has_relay=True)
    socket = folder / "agents.sock"
    settings = shared.settings("owner", agent_socket=socket, agent_uids=f"{os.getuid()}=coder")
    async with Mesh.open(shared.settings("owner")) as owner:
        await owner.grants.admit("coder", key.public)
        await owner.grants.issue("coder", ["message.send"])
        await owner.grants.set_strict(strict=True)
    async with Mesh.open(settings):  # what a node knows of agents may be a second old
        key_file = tmp_path / "agents" / "coder.pem"
        async with AgentClient.open(f"unix:{socket}", "coder", key_file=key_file) as client:
            sent = await client.messages.send("z", {"pr": 42.0, "é": None}, msg_type="note")
            assert sent.signed_by_agent == "verified"
            assert (await client.messages.send("z", 1, key=new_key())).signed_by_agent == "verified"
            with pytest.raises(BadValue, match="must be given with `key`"):
                await client.messages.broadcast("all", agent_signature=ANN.sign(b""))
        async with AgentClient.open(f"unix:{socket}", "coder") as client:
            with pytest.raises(AgentSignatureMissing):
                await client.messages.send("z", 1)
