"""Unadmitted nodes: what a node signs that joined a strict mesh past its owner is not believed."""

from __future__ import annotations

import pytest

from tests.support.attacks.ended_jobs import run_until_done
from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole, faults
from vox_mesh import Mesh
from vox_mesh.errors import NodeNotAdmitted, NotGranted
from vox_mesh.model.oplog.verification import STRICT
from vox_mesh.node import MeshNode


async def test_nothing_of_a_node_that_joined_past_the_owner_is_believed(
    owner: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    await owner.grants.set_strict(strict=True)
    with pytest.raises(NodeNotAdmitted):
        async with Mesh.open(shared_mesh.settings("evil")):
            pass
    hostile.run("DELETE FROM admitted_agents WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = '*'")
    async with Mesh.open(shared_mesh.settings("evil")) as evil:
        job = await evil.jobs.schedule("build", "evil", priority=3)
        await evil.messages.send("critic", "evil", sender="owner")
    hostile.insert("admitted_agents", agent_id="*", public_key=None, op_id="x")
    await owner.jobs.schedule("build", "genuine", priority=0)
    await owner.messages.send("critic", "genuine")
    assert await run_until_done(owner, "genuine") == ["genuine"]
    assert (await owner.jobs.find(job.job_id)).claimer is None
    async for message in owner.messages.receive("critic", lease=60.0):
        assert message.body == "genuine"
        break
    assert await faults(owner) == {"evil"}


async def test_a_strict_mesh_stays_strict_if_its_op_is_marked_as_refused(
    owner: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    await owner.grants.set_strict(strict=True)
    await assert_whole(owner)
    hostile.run(
        "UPDATE agent_oplog SET accepted = 0, reason = 'x'"
        " WHERE scope_id = ?1 AND repository_id = ?2 AND kind = ?3",
        STRICT,
    )
    async with Mesh.open_command(shared_mesh.settings("owner")) as fresh:
        assert (await fresh.grants.admissions()).is_strict
        with pytest.raises(NotGranted):
            await fresh.locks.acquire("task:1", agent="eve")
