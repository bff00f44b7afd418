"""Commands of an agent without a database: through its node, with the usual output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.confined import IS_ROOT, OTHER_USER
from tests.support.running.through_node import run_through
from tools.homes import FILE
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key


async def test_locks_go_through_the_node(node: MeshNode, folder: Path) -> None:
    acquired = await run_through(folder, "lock", "acquire", "task:1")
    (holder,) = await node.locks.holders()
    token = str(holder.fence_token)
    assert acquired == (0, f"acquired task:1 for coder (token {token}), expires in 5m\n", "")
    renewed = await run_through(folder, "lock", "renew", "task:1", "--token", token, "--ttl", "1m")
    assert renewed.out == f"renewed task:1 for coder (token {token}), expires in 1m\n", renewed.err
    listed = json.loads((await run_through(folder, "lock", "list", "--json")).out)
    assert [(each["lock_key"], each["holder_agent"]) for each in listed] == [("task:1", "coder")]
    released = await run_through(folder, "lock", "release", "task:1")
    assert released.out == f"released task:1 for coder (token {token})\n", released.err
    await node.locks.acquire("task:1", agent="boss")
    refused = await run_through(folder, "lock", "acquire", "task:1", "--json")
    assert (refused.code, json.loads(refused.out)[0]["holder_agent"]) == (1, "boss")


async def test_a_job_is_taken_asked_about_answered_and_run_through_the_node(
    node: MeshNode, folder: Path
) -> None:
    job_id = (await node.jobs.schedule("build", payload={"n": 1})).job_id
    (taken,) = json.loads((await run_through(folder, "job", "take", "build", "--json")).out)
    token = str(taken["claim_token"])
    assert (taken["job_id"], taken["agent"], taken["payload"]) == (job_id, "coder", {"n": 1})
    renewed = await run_through(folder, "job", "renew", job_id, "--token", token, "--json")
    assert json.loads(renewed.out)["claim_token"] == taken["claim_token"]
    asked = await run_through(folder, "job", "ask", job_id, "Which?", "--token", token)
    assert asked.code == 0, asked.err
    answered = await run_through(folder, "job", "answer", job_id, "main", "--json")
    assert json.loads(answered.out)["answered_by"] == "coder"
    ended = await run_through(
        folder, "job", "run-next", "build", "--", "sh", "-c", 'echo "\\"$VOX_AGENT_ID\\"" > "$VOX_JOB_RESULT"'
    )
    assert ended.code == 0, ended.err
    assert await node.jobs.result(job_id) == "coder"
    late = await run_through(folder, "job", "report", job_id, "succeeded", "--token", token)
    assert (late.code, "stale_claim" in late.err) == (1, True)


@pytest.mark.usefixtures("node")
async def test_other_commands_say_that_they_need_the_nodes_own_user(folder: Path) -> None:
    ended = await run_through(folder, "nodes")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "`vox-mesh nodes` does not work through a node" in ended.err
    assert "run it as the node's own user" in ended.err


@pytest.mark.skipif(
    not IS_ROOT or shutil.which("setpriv") is None, reason="only root can be another user, with setpriv"
)
async def test_an_agent_under_another_user_is_served_and_a_user_without_an_agent_is_not(folder: Path) -> None:
    shared_mesh = SharedMesh(FILE, folder, None, new_key(), has_relay=True)
    settings = shared_mesh.settings(
        "ann",
        agent_socket=folder / "agents.sock",
        agent_socket_group=str(OTHER_USER),
        agent_uids=f"{OTHER_USER}=coder",
    )
    async with Mesh.open(settings) as node:
        acquired = await run_through(folder, "lock", "acquire", "task:1", as_user=OTHER_USER)
        assert acquired.code == 0, acquired.err
        assert [each.holder_agent for each in await node.locks.holders()] == ["coder"]
        stranger = await run_through(folder, "lock", "acquire", "task:2")
        assert (stranger.code, "is no agent of this node" in stranger.err) == (1, True)
