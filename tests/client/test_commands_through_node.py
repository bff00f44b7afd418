"""Commands of an agent without a database: through its node, with the usual output and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.confined import IS_ROOT, OTHER_USER
from tests.support.running.through_node import run_through
from tools.homes import FILE
from vox_mesh.cli.app import run
from vox_mesh.cli.jobs.job_output import whole_lines
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key
from vox_mesh.views.jobs import WholeJobView, show_whole_job
from vox_mesh.views.messages import MessageView


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


async def test_a_job_is_scheduled_shown_and_awaited_through_the_node(node: MeshNode, folder: Path) -> None:
    first = (await node.jobs.schedule("build")).job_id
    options = ["--kind", "build", "--payload", "null", "--after", f"{first}:end", "--lease", "90s"]
    options += ["--run-at", "2026-01-31T08:00:00+01:00", "--backoff", "1500ms", "--priority", "2"]
    scheduled = await run_through(folder, "job", "schedule", "--once", *options)
    (job,) = await node.jobs.queries.successors([first])
    assert scheduled == (0, f"scheduled job {job[:12]} (build)\n", "")
    again = await run_through(folder, "job", "schedule", "--once", *options)
    assert (again.code, "not scheduled again" in again.err) == (4, True), again.err
    shown = json.loads((await run_through(folder, "job", "show", job[:12], "--json")).out)
    view = WholeJobView.of_document({**asdict(await show_whole_job(node, job)), "claim_token": None})
    assert shown == json.loads(json.dumps(asdict(view)))
    in_full = await run_through(folder, "job", "show", job[:12])
    assert in_full.out.splitlines() == whole_lines(view)
    waited = await run_through(folder, "job", "wait", first, "--timeout", "0s")
    assert (waited.code, "1 of 1 jobs have not ended" in waited.err) == (1, True), waited.err
    (taken,) = await node.work.take("coder", ["build"])
    await node.work.report(taken.job, taken.claim_token, succeeded())
    waited = await run_through(folder, "job", "wait", first, "--json")
    assert (waited.code, [each["state"] for each in json.loads(waited.out)]) == (0, ["succeeded"])
    unknown = await run_through(folder, "job", "show", "abcdef")
    assert (unknown.code, unknown.err) == (
        1,
        "vox-mesh: there is no job abcdef; run `vox-mesh job list` [not_known]\n",
    )


async def test_messages_are_sent_read_and_settled_through_the_node(node: MeshNode, folder: Path) -> None:
    sent = await run_through(folder, "send", "coder", '{"pr": 42}', "--thread", "t", "--json")
    uuid = json.loads(sent.out)["message_uuid"]
    assert json.loads(sent.out) == asdict(MessageView.of(node, await node.messages.queries.get(uuid)))
    replied = await run_through(folder, "send", "coder", "done", "--reply-to", uuid[:20])
    assert (replied.code, replied.out.startswith("sent to coder (message ")) == (0, True), replied.err
    peeked = json.loads((await run_through(folder, "inbox", "coder", "--json")).out)
    assert [(each["payload"], each["thread_id"]) for each in peeked] == [({"pr": 42}, "t"), ("done", "t")]
    after = ("--after", str(peeked[0]["position"]), "--follow", "--limit", "1")
    followed = json.loads((await run_through(folder, "inbox", "coder", "--json", *after)).out)
    assert followed == peeked[1]
    claimed = json.loads((await run_through(folder, "inbox", "coder", "--claim", "--json")).out)
    owner = claimed[0]["claim_owner"]
    settled = ("--claim", owner, "--json")
    acked = await run_through(folder, "messages", "ack", uuid[:20], *settled)
    assert [(each["state"], each["payload"]) for each in json.loads(acked.out)] == [("acked", {"pr": 42})]
    again = await run_through(folder, "messages", "ack", uuid, "--claim", "another")
    assert (again.code, again.err.count("\n")) == (1, 1)
    second = claimed[1]["message_uuid"]
    nacked = await run_through(folder, "messages", "nack", second, *settled, "--retry-in", "0s")
    assert json.loads(nacked.out)["state"] == "stored", nacked.err
    drained = await run_through(folder, "inbox", "coder", "--ack", "--limit", "1", "--follow")
    assert (drained.code, "done" in drained.out) == (0, True), drained.err
    awaited = await run_through(folder, "send", "absent", "hi", "--wait-ack", "10ms")
    assert (awaited.code, ", not acknowledged yet (" in awaited.out) == (1, True), awaited.err
    refused = await run_through(folder, "inbox", "boss")
    assert (refused.code, "must be coder, as authenticated" in refused.err) == (1, True)


async def test_the_guard_checks_paths_through_the_node(node: MeshNode, folder: Path) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(folder / "own")], check=True)
    assert await run_through(folder, "guard", "check", "a.py") == (0, "", "")
    unlocked = await run_through(folder, "guard", "check", "--require-lock", "a.py")
    assert (unlocked.code, "1 path is not locked by coder" in unlocked.err) == (1, True)
    await node.locks.acquire("file:a.py", agent="boss")
    held = await run_through(folder, "guard", "check", "a.py", "--json")
    assert (held.code, [each["holder_agent"] for each in json.loads(held.out)]) == (1, ["boss"]), held.err
    (folder / "agents.sock").unlink()
    away = await run_through(folder, "guard", "check", "a.py")
    assert (away.code, "locks not checked: " in away.err) == (3, True)


async def test_an_agent_waits_for_its_approval_through_the_node(node: MeshNode, folder: Path) -> None:
    await node.grants.admit("coder")
    await node.grants.issue("coder", ["coder"])
    asked = await run_through(folder, "job", "schedule", "--json", "--", "make")
    pending = json.loads(asked.err)
    assert (asked.code, pending["code"]) == (5, "approval_pending")
    await node.approvals.approve(pending["approval_id"])
    waited = await run_through(folder, "approvals", "wait", pending["approval_id"], "--json")
    assert (waited.code, json.loads(waited.out)["state"]) == (0, "applied"), waited.err


@pytest.mark.parametrize(
    "command",
    [
        *(
            "nodes",
            "doctor",
            "config show",
            "status",
            "init",
            "beat",
            "up",
            "top",
            "worker list",
            "trust --mesh",
        ),
        *(
            "db status",
            "db migrate",
            "job list",
            "lock run task:1 -- true",
            "token create --ttl 1d",
            "oplog tail",
        ),
        *("join file:mesh.db", "agents", "messages list", "inbox coder --exec true", "guard install"),
    ],
)
def test_other_commands_say_that_they_need_the_nodes_own_user(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in os.environ if each.startswith("VOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VOX_MESH_NODE", f"unix:{folder / 'agents.sock'}")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    assert run(command.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1), printed
    assert "does not work through a node" in printed.err
    assert "run it as the node's own user" in printed.err
    assert [*folder.iterdir()] == []


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
