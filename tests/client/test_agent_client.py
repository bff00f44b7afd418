"""The client of agents against a real node: the same records and errors as with a database of one's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from vox_mesh import sync
from vox_mesh.client import AgentClient
from vox_mesh.errors import (
    ApprovalPending,
    BadSettings,
    BadValue,
    LockHeld,
    NodeRefused,
    NotHolder,
    NotKnown,
    Refused,
    StaleClaim,
    Unreachable,
)
from vox_mesh.jobs.work.reports import needs_input, succeeded
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.locks.records import iso_of
from vox_mesh.node import MeshNode

_LIGHT: Final = """
import sys
import vox_mesh.client
heavy = [each for each in sys.modules if each.startswith(("vox_mesh.store", "libsql", "sqlite3", "pydantic"))]
print(heavy)
"""


async def test_a_job_is_taken_worked_on_and_reported(client: AgentClient, node: MeshNode) -> None:
    scheduled = await client.jobs.schedule("build", {"target": "all"})
    assert await client.work.take(kinds=["other"]) == []
    (taken,) = await client.work.take(kinds=["build"], wait=5, lease="5m")
    assert (taken.job.job_id, taken.agent, taken.payload) == (scheduled.job_id, "coder", {"target": "all"})
    job, token = taken.job, taken.claim_token
    renewed = await client.work.renew(job, token, lease="10m")
    assert (renewed.job.job_id, renewed.claim_token, renewed.lease_ms) == (job.job_id, token, 600_000)
    await client.work.progress(job, token, 0.5, "halfway")
    await client.work.checkpoint(job, token, {"at": 3})
    await client.work.log(job, token, "compiled")
    await client.work.keep(job, token, "report.txt", b"\x00all green")
    asked = await client.work.report(job, token, needs_input(Question("Which?", ["a", "b"])))
    assert asked.state == JobState.PENDING
    assert [each.document["text"] for each in await client.jobs.questions()] == ["Which?"]
    assert (await client.jobs.answer(job, "b")).answered_by == "coder"
    (again,) = await client.work.take(kinds=["build"], wait=5)
    assert (again.answer, again.checkpoint, again.job.attempts) == ("b", {"at": 3}, 2)
    done = await client.work.succeed(again.job, again.claim_token, {"files": 3}, exit_code=0)
    assert done.state == JobState.SUCCEEDED
    first, second = [await client.jobs.schedule("test", n) for n in (1, 2)]
    (taken,) = await client.work.take(kinds=["test"], wait=5)
    (taken,) = await client.work.report_and_take(
        taken.job, taken.claim_token, succeeded("ok"), ["test"], wait=5
    )
    assert (taken.job.job_id, await node.jobs.result(first.job_id)) == (second.job_id, "ok")
    assert (await client.jobs.wait(job, timeout=5)).job_id == job.job_id
    assert await node.jobs.result(job.job_id) == {"files": 3}
    with pytest.raises(StaleClaim):
        await client.work.fail(job, token, "too late")


async def test_a_wait_for_a_job_that_does_not_end_ends(client: AgentClient) -> None:
    scheduled = await client.jobs.schedule("build")
    with pytest.raises(TimeoutError):
        await client.jobs.wait(scheduled, timeout=0)


async def test_locks_are_acquired_renewed_refused_and_released(client: AgentClient, node: MeshNode) -> None:
    held = await client.locks.acquire("file:src/a.py", ttl="2m")
    assert (held.keys, held.holder_agent, held.ttl) == (("file:src/a.py",), "coder", 120.0)
    again = await client.locks.acquire("file:src/a.py", or_renew=True)
    assert (again.is_renewed, again.fence_token) == (True, held.fence_token)
    await client.locks.renew_by_token("file:src/a.py", held.fence_token, ttl=60)
    others = await node.locks.acquire("file:src/b.py", agent="boss")
    with pytest.raises(LockHeld, match="boss") as refused:
        await client.locks.acquire(["file:src/**"], wait="10ms")
    assert {each.holder_agent for each in refused.value.holders} >= {"boss"}
    assert {each.lock_key: each.session for each in await client.locks.holders()} == {
        "file:src/a.py": None,
        "file:src/b.py": None,
    }
    (found,) = await client.locks.check(["src/a.py", "src/b.py"])
    assert found.path == "src/b.py"
    assert found.holder is not None
    assert found.holder == (await node.locks.holders("file:src/b.py"))[0]._replace(
        request_id="", fence_token=0, now_ms=found.holder.now_ms
    )
    assert [each.keys for each in await client.locks.release_held()] == [("file:src/a.py",)]
    with pytest.raises(NotKnown):
        await client.locks.release_by_token("file:src/a.py", held.fence_token)
    await node.locks.release(others)


async def test_messages_are_sent_received_and_settled(client: AgentClient, node: MeshNode) -> None:
    sent = await client.messages.send("coder", {"pr": 42}, thread="t", ack_within="1m")
    assert (sent.sender_agent, sent.body, sent.thread_id) == ("coder", {"pr": 42}, "t")
    assert [each.message_uuid for each in await client.messages.wait(5)] == [sent.message_uuid]
    assert await client.messages.peek(after=sent.position) == []
    (claimed,) = await client.messages.claim()
    assert claimed.claim_owner is not None
    await client.messages.nack(claimed, retry_in=0, reason="busy")
    with pytest.raises(NotHolder):
        await client.messages.ack(claimed)
    async for message in client.messages.receive():
        assert message.delivery_attempts == 2
        await client.messages.ack(message)
        break
    assert await client.messages.wait_for_ack(sent, 5)
    stored = await node.messages.queries.get(sent.message_uuid)
    found = await client.messages.find(sent.message_uuid[:20])
    assert found is not None
    assert found == stored._replace(signature=found.signature)
    await node.messages.send("boss", "private", sender="ben")
    (claimed,) = await node.messages.poll_inbox_from_db("boss")
    hidden = await client.messages.find(claimed.message_uuid)
    assert hidden is not None
    assert (hidden.body, hidden.claim_owner) == (None, None)
    own = await client.messages.send("boss", {"result": "{}", "fence_token": 7})
    (claimed,) = await node.messages.poll_inbox_from_db("boss")
    found = await client.messages.find(own.message_uuid)
    assert found is not None
    assert (found.body, found.claim_owner) == (own.body, None), "the claim is the receiver's"


async def test_an_agent_waits_for_its_approval(client: AgentClient, node: MeshNode) -> None:
    await node.grants.admit("coder")
    await node.grants.issue("coder", ["coder"])
    with pytest.raises(ApprovalPending) as asked:
        await client.jobs.schedule_all([{"command": ["make"], "timeout": "10m"}])
    approval_id = asked.value.approval_id
    assert asked.value.expires_at == iso_of((await node.approvals.find(approval_id)).request.expires_ms)
    with pytest.raises(TimeoutError):
        await client.approvals.wait(approval_id, timeout=0)
    with pytest.raises(Refused, match="own_request"):
        await client.approvals.approve(approval_id)
    assert [each.request.approval_id for each in await client.approvals.listed()] == [approval_id]
    await node.approvals.approve(approval_id, "go on")
    found = await client.approvals.wait(approval_id)
    assert found == (await node.approvals.find(approval_id))._replace(decision_op=None)
    assert await client.approvals.listed() == []
    with pytest.raises(Refused, match="approval_not_open"):
        await client.approvals.deny(approval_id)


async def test_errors_are_those_of_the_mesh(client: AgentClient, folder: Path) -> None:
    with pytest.raises(NotKnown, match="there is no job abcdef"):
        await client.jobs.find("abcdef")
    with pytest.raises(BadValue, match="keys"):
        await client.locks.acquire([])
    async with AgentClient.open(f"unix:{folder / 'agents.sock'}", "boss") as other:
        with pytest.raises(NodeRefused, match="must be coder") as refused:
            await other.locks.holders()
        assert refused.value.problem == "not_your_name"
    async with AgentClient.open(f"unix:{folder / 'gone.sock'}", "coder") as lost:
        with pytest.raises(Unreachable, match="No such file"):
            await lost.brief()


@pytest.mark.parametrize("address", ["unix:relative", "ftp://host", "http://", "http://host/path"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadSettings, match="VOX_MESH_NODE"):
        async with AgentClient.open(address, "coder"):
            pass


async def test_the_client_without_await_does_the_same(node: MeshNode, folder: Path) -> None:
    def work() -> str:
        with sync.AgentClient.open(f"unix:{folder / 'agents.sock'}", "coder") as client:
            return client.locks.acquire("task:1").holder_agent

    assert await asyncio.to_thread(work) == "coder"
    assert [each.lock_key for each in await node.locks.holders()] == ["task:1"]


def test_the_client_loads_neither_the_store_nor_a_driver() -> None:
    printed = subprocess.run([sys.executable, "-c", _LIGHT], check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == "[]"
