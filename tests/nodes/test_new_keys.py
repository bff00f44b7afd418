"""New keys: a node that comes with another key waits until the owner accepts it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole, come_and_go
from tests.support.oplog.tampering import NOTE, stranger
from vox_mesh import Mesh
from vox_mesh.errors import KeyRefused, NotKnown, Refused, StaleIncarnation
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.node import MeshNode


async def test_a_node_with_a_new_key_waits_for_the_owner_to_accept_it(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    old = await come_and_go(shared_mesh, "worker")
    shared_mesh.forget_key("worker")
    with pytest.raises(KeyRefused) as refused:
        async with Mesh.open(shared_mesh.settings("worker")):
            pass
    new, _ = await owner.roles.rekey("worker")
    assert new != old
    assert new in str(refused.value)
    assert "nodes rekey worker" in refused.value.hint
    assert await come_and_go(shared_mesh, "worker") == new
    await owner.store.synced()
    keys = [key for key in await owner.oplog.keys() if key.node_id.startswith("worker")]
    assert [(key.node_id, key.public_key) for key in keys] == [
        ("worker", old),
        ("worker", new),
        ("worker" + COMMANDS, old),
        ("worker" + COMMANDS, new),
    ]
    assert keys[1].from_seq > 1
    await assert_whole(owner)
    with pytest.raises(NotKnown):
        await owner.roles.rekey("worker")  # the request is gone


async def test_a_command_with_a_new_key_is_refused(shared_mesh: SharedMesh, owner: MeshNode) -> None:
    await come_and_go(shared_mesh, "worker")
    shared_mesh.forget_key("worker")
    async with Mesh.open_command(shared_mesh.settings("worker")) as command:
        with pytest.raises(KeyRefused, match="worker is known with another key"):
            await command.oplog.anchor()


async def test_no_one_but_the_owner_accepts_a_key_that_was_asked_for(
    shared_mesh: SharedMesh, owner: MeshNode, other: MeshNode
) -> None:
    old = await come_and_go(shared_mesh, "worker")
    shared_mesh.forget_key("worker")
    with pytest.raises(KeyRefused):
        async with Mesh.open(shared_mesh.settings("worker")):
            pass
    with pytest.raises(Refused, match="not_the_owner"):
        await other.roles.rekey("worker")
    assert {key.public_key for key in await other.oplog.keys() if key.node_id == "worker"} == {old}
    with pytest.raises(KeyRefused):
        async with Mesh.open(shared_mesh.settings("worker")):
            pass
    await owner.roles.rekey("worker")  # the request is still there


async def test_a_key_is_not_accepted_while_the_node_still_writes(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.oplog.append(NOTE.name, {})
    read = owner.roles._read

    async def read_while_it_writes(name: str, *values: Any) -> Any:
        rows = await read(name, *values)
        if name == "chains_of":
            await other.oplog.append(NOTE.name, {})
        return rows

    monkeypatch.setattr(owner.roles, "_read", read_while_it_writes)
    with pytest.raises(Refused, match="node_still_writes"):
        await owner.roles.rekey("other", stranger().public)
    await other.oplog.append(NOTE.name, {})
    await owner.store.synced()
    await assert_whole(owner)


async def test_a_process_with_the_old_key_writes_no_more_once_another_is_accepted(
    owner: MeshNode, other: MeshNode
) -> None:
    await other.oplog.append(NOTE.name, {})
    await owner.roles.rekey("other", stranger().public)
    with pytest.raises(StaleIncarnation):
        await other.oplog.append(NOTE.name, {})
    await assert_whole(owner)
