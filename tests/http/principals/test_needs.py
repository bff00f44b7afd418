"""Needs of operations: an agent with just what the front asks for writes the op, which needs just that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest_asyncio

from tests.jobs.steps.test_waits import suspended
from tests.support.messages.relaying import PATIENCE_S, assert_problem
from tests.support.nodes.api_scene import approval, conflict
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole, come_and_go
from tests.support.nodes.signing import SigningAgent, audience_of
from tools.homes import FILE
from vox_mesh import JobContext, acting_as
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.operations import Operation
from vox_mesh.jobs.work.mcp_tasks import McpTask
from vox_mesh.jobs.work.reports import needs_input
from vox_mesh.model.grants.needs import NEEDS
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key
from vox_mesh.store.acting import acting_as_principal
from vox_mesh.views.agents.mcp_tasks import tasks_of

_BY_NAME: Final = {each.name: each for each in OPERATIONS}
_ACTIONS: Final = {need.actions for need in NEEDS.values()}
_MANIFEST: Final = {"kind": "notes"}


@pytest_asyncio.fixture
async def served(tmp_path_factory: Any) -> AsyncIterator[ServedNode]:
    """The owner's node."""
    shared_mesh = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with serving_api(shared_mesh) as served:
        yield served


async def _admit(served: ServedNode, name: str, *lines: str) -> SigningAgent:
    agent = SigningAgent(name, served.client, audience_of(served.node))
    await served.node.grants.admit(name, agent.key.public)
    if lines:
        await served.node.grants.issue(name, lines)
    served.node.principals.known._reading.expire()
    return agent


async def _taken(node: MeshNode, kind: str, agent: str = "worker") -> tuple[str, int]:
    await node.jobs.schedule(kind)
    (taken,) = await node.work.take(agent, [kind], wait=PATIENCE_S)
    return taken.job.job_id, taken.claim_token


async def _stepped(node: MeshNode) -> str:
    """A job with a stored step."""

    @node.worker.handles("stepped")
    async def work(context: JobContext) -> None:
        await context.step("a", str)

    async with node.worker.running():
        return (await node.jobs.wait(await node.jobs.schedule("stepped"), timeout=PATIENCE_S)).job_id


async def _asleep(node: MeshNode) -> str:
    """A suspended job."""

    @node.worker.handles("asleep")
    async def work(context: JobContext) -> None:
        await context.sleep("1d")

    job = await node.jobs.schedule("asleep")
    async with node.worker.running():
        return (await suspended(node, job.job_id)).job_id


async def _asking_task(node: MeshNode, agent: str) -> McpTask:
    """A task of the agent which will be asked to answer it."""
    tasks = tasks_of(node)
    with acting_as_principal(agent):
        task = await tasks.create(Manifest.of(kind="asks.more"))
    (taken,) = await node.work.take("worker", ["asks.more"], wait=PATIENCE_S)
    await node.work.report(taken.job, taken.claim_token, needs_input("Which?"))
    return await tasks.find(task.task_id)


async def _requests(served: ServedNode) -> Iterator[tuple[str, dict[str, str], Any]]:
    """All requests that write an op for which the table has a need: operation, path and body."""
    node = served.node
    await come_and_go(served.shared_mesh, "gone")
    await node.locks.acquire("task:1", agent="eve", ttl=3_600.0)
    open_job, ended = [(await node.jobs.schedule("notes", n)).job_id for n in (1, 2)]
    others = [(await node.jobs.schedule("notes", n)).job_id for n in (3, 4)]
    stopped = (await node.jobs.schedule("notes", 7)).job_id
    await node.jobs.abort(ended, others[1], stopped)
    asking, token = await _taken(node, "asks")
    await node.work.report(asking, token, needs_input("Which?"))
    held, _ = await _taken(node, "held")
    task = await _asking_task(node, "agent25")
    cron = {"expression": "@daily", "manifest": _MANIFEST}
    policy = "cluster_id: east\ninitial_bpm: 15\nlimits: {min_bpm: 6, max_bpm: 24}\n"
    assert task.question is not None
    named, kind, worker = {"name": "nightly"}, {"kind": "notes"}, {"node_id": "ann"}
    return iter(
        [
            ("add_cron", named, cron),
            ("remove_cron", named, None),
            ("add_rule", named, {"op_kind": "BreakLock", "manifest": _MANIFEST}),
            ("remove_rule", named, None),
            ("pause_kind", kind, None),
            ("resume_kind", kind, None),
            ("change_kind", kind, {"max_running": 5}),
            ("drain_worker", worker, None),
            ("undrain_worker", worker, None),
            ("remove_node", {"node_id": "gone"}, None),
            ("set_budget", {}, {"subject": "agent:eve", "budget": {"max_bu": 5}}),
            ("set_policy", {}, {"policy": policy}),
            ("declare_incident", {}, {"reason": "fire"}),
            ("clear_incident", {}, None),
            ("break_lock", {}, {"lock_key": "task:1", "reason": "it hangs"}),
            ("resolve_conflict", {"conflict_id": await conflict(node, "row")}, {"take": "left"}),
            ("schedule_jobs", {}, {"manifests": [{"kind": "notes", "payload": 5}]}),
            ("run_workflow", {}, {"workflow": {"name": "one", "jobs": {"a": _MANIFEST}}}),
            ("abort_job", {"job": open_job}, {}),
            ("abort_jobs", {}, {"jobs": others[:1]}),
            ("retry_job", {"job": ended}, None),
            ("retry_jobs", {}, {"jobs": others[1:]}),
            ("yield_job", {"job": held}, {}),
            ("answer_question", {"job": asking}, {"answer": "this"}),
            ("create_task", {}, {"manifest": {"kind": "notes", "payload": 6}}),
            ("answer_task", {"task": task.task_id}, {"question_id": task.question.question_id, "answer": 1}),
            ("resume_job", {"job": stopped}, None),
            ("fork_job", {"job": await _stepped(node)}, {"step": "a"}),
            ("wake_job", {"job": await _asleep(node)}, None),
        ]
    )


async def test_the_front_asks_for_what_the_services_and_the_verifier_need(served: ServedNode) -> None:
    tried: set[str] = set()
    for number, (name, names, body) in enumerate(await _requests(served)):
        operation = _BY_NAME[name]
        lines = [group[0] for group in operation.need.actions]
        assert lines, f"{name} is not for agents"
        agent = await _admit(served, f"agent{number}", *lines)
        before = {each.op_id for each in await served.node.oplog.tail(10, agent=agent.name)}
        answer = await _ask(agent, operation, names, body)
        assert answer.is_success, (name, answer.text)
        tail = await served.node.oplog.tail(10, agent=agent.name)
        written = [each for each in tail if each.op_id not in before]
        assert {NEEDS[each.kind].actions for each in written} == {operation.need.actions}, name
        tried.add(name)
    await assert_whole(served.node)
    of_table = {each.name for each in OPERATIONS if each.method != "GET" and each.need.actions in _ACTIONS}
    assert of_table == tried


async def _ask(agent: SigningAgent, operation: Operation, names: dict[str, str], body: Any) -> Any:
    return await agent.ask(operation.method, operation.path.format(**names), body)


async def _mail(node: MeshNode, *pairs: tuple[str, str]) -> list[str]:
    """Return the paths of new messages from the first to the second of each pair."""
    sent = [await node.messages.send(to, "hello", sender=sender) for sender, to in pairs]
    return [f"/v1/messages/{each.message_uuid}" for each in sent]


async def test_an_agent_reads_and_ends_its_own_things_without_a_grant_for_it(served: ServedNode) -> None:
    node = served.node
    agent = await _admit(served, "coder", "job.take kind work")
    grant = await node.grants.issue("coder", ["job.schedule kind notes", "message.send"])
    foreign = (await node.jobs.schedule("notes", "of another")).job_id
    held, _ = await _taken(node, "work", "coder")
    with acting_as("coder"):
        own, another = [(await node.jobs.schedule("notes", n)).job_id for n in (1, 2)]
        await node.jobs.schedule("notes", foreign, after=[foreign])  # an op of its own that names it
    await node.grants.issue("coder", ["message.receive to role:qa"])
    mail = await _mail(node, ("coder", "ben"), ("ben", "coder"), ("ben", "role:qa"))
    foreign_mail = await _mail(node, ("ben", "eve"), ("ben", "role:dev"))
    await node.grants.revoke(grant.grant_id)
    asked = await approval(node)
    asker = await _admit(served, "asker")
    for path in (f"/v1/jobs/{own}", f"/v1/jobs/{held}", f"/v1/jobs/{own}/wait?timeout=0", *mail):
        assert (await agent.ask("GET", path)).status_code == 200, path
    assert (await agent.ask("GET", "/v1/jobs/questions?to=coder")).json() == []
    assert (await asker.ask("GET", f"/v1/approvals/{asked}/wait?timeout=0")).status_code == 200
    foreign_jobs = (f"/v1/jobs/{foreign}", "/v1/jobs/ffffff", "/v1/jobs/questions")
    for path in (*foreign_jobs, f"/v1/approvals/{asked}", *foreign_mail, "/v1/messages/ffffff"):
        assert_problem(await agent.ask("GET", path), 403, "not_granted")
    assert_problem(await agent.ask("POST", f"/v1/jobs/{foreign}/abort", {}), 403, "not_granted")
    both = {"jobs": [another, foreign]}
    assert_problem(await agent.ask("POST", "/v1/jobs/abort", both), 403, "not_granted")
    assert (await agent.ask("POST", f"/v1/jobs/{own}/abort", {})).json()["aborted"]
    assert (await agent.ask("POST", "/v1/jobs/abort", {"jobs": [another]})).status_code == 200
    await assert_whole(node)
