"""A mesh with something of everything that the API is asked about."""

from __future__ import annotations

from tests.support.jobs.staging import brought
from tests.support.oplog.rivals import MEMORIES, at, overtaken
from vox_mesh import ConflictRecorded, DeferToAgent, acting_as
from vox_mesh.errors import ApprovalPending
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.views.agents.mcp_tasks import tasks_of

AGENT = "reviewer"
KIND = "test.scene"


async def conflict(node: MeshNode, name: str) -> str:
    """Have a conflict recorded, on a row of this name; its id."""
    base, _ = await overtaken(node, name, tags="right")
    answer = await node.occ.write(
        MEMORIES, at(name), {"content": "left"}, base, strategy=DeferToAgent("judge"), agent="coder"
    )
    assert isinstance(answer, ConflictRecorded)
    return answer.conflict_id


async def approval(node: MeshNode) -> str:
    """Have an agent ask for an approval; its id."""
    await node.grants.admit("asker")
    await node.grants.issue("asker", ["ask job.schedule"])
    try:
        with acting_as("asker"):
            await node.jobs.schedule(KIND)
    except ApprovalPending as pending:
        return pending.approval_id
    raise AssertionError("nothing was asked")


async def fill(node: MeshNode) -> dict[str, str]:
    """Have all sorts of things happen; what is there, by the names that stand in paths."""
    job = None
    for state in JobState:
        job = await brought(node, state)
    assert job is not None
    await node.crons.add("report", "@daily", Manifest.of(kind="test.report"))
    await node.rules.add("report", "BreakLock", Manifest.of(kind="test.report"))
    await node.job_kinds.pause(KIND)
    await node.roles.route_kind(KIND, node.identity.node_id)
    op = await node.roles.designate_coordinator(node.identity.node_id)
    await node.locks.acquire(["a", "src/*.py"], agent=AGENT, ttl=3_600.0)
    await node.locks.acquire("b", agent=AGENT, ttl=3_600.0, shared=True)
    for number in range(3):
        await node.messages.send(AGENT, {"n": number}, sender=f"coder{number}", thread="talk")
    thread = await node.rhythm.help.ask(AGENT, "how?", sender="coder")
    await node.rhythm.budgets.set(f"agent:{AGENT}", Budget(max_bu=10))
    await node.grants.admit("granted")
    grant = await node.grants.issue("granted", ["reader"])
    run = await node.workflows.run({"name": "nightly", "jobs": {"report": {"kind": "test.report"}}}, {})
    message, *_ = await node.messages.queries.listed()
    return {
        "agent": AGENT,
        "agent_id": AGENT,
        "approval": await approval(node),
        "content_hash": f"blake3:{'ab' * 32}",
        "conflict_id": await conflict(node, "row"),
        "grant_id": grant.grant_id,
        "host": "claude",
        "job": job.job_id,
        "kind": KIND,
        "message_uuid": message.message_uuid,
        "name": "report",
        "node_id": node.identity.node_id,
        "op_id": op.key,
        "run_id": run.summary.run_id,
        "task": (await tasks_of(node).create(Manifest.of(kind=KIND))).task_id,
        "thread": thread.thread_id,
    }
