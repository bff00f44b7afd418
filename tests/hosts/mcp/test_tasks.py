"""Tasks over MCP, by the SDK's client of a real node."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    Request,
)

from tests.support.hosts.mcp_clients import LEGACY, McpNode, call
from tests.support.hosts.mcp_tasks import task_client
from tests.support.messages.messaging import PATIENCE_S
from tests.support.messages.relaying import TOKEN
from vox_mesh.hosts.mcp.tasks.wire import EXTENSION
from vox_mesh.jobs.work.reports import Report, failed, needs_input, succeeded
from vox_mesh.model.jobs.question import Question
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

_METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")


@pytest.fixture
def kind() -> str:
    """A kind of job that no other test has."""
    return f"test.{new_key().lower()}"


async def work(served: McpNode, kind: str, report: Report) -> Any:
    """Take the job, and report this about it; what it was answered."""
    (taken,) = await served.node.work.take("worker", [kind], wait=PATIENCE_S)
    await served.node.work.report(taken.job, taken.claim_token, report)
    return taken.answer


async def test_submit_returns_a_task_that_ends_with_the_result_of_the_job(served: McpNode, kind: str) -> None:
    token = await served.token_of(f"amy-{kind}")
    async with task_client(served.url, token) as client:
        discovered = await client.send(Request[dict[str, Any], str](method="server/discover", params={}))
        assert discovered["capabilities"]["extensions"] == {EXTENSION: {}}
        created = await client.submit(kind=kind, payload={"n": 1})
        document = created.document
        assert (document["status"], document["ttlMs"], "result" in document) == ("working", None, False)
        assert document["pollIntervalMs"] > 0
        waiting = asyncio.create_task(client.until(created.task_id, "completed"))
        await work(served, kind, succeeded({"n": 2}))
        task = await waiting
        assert (task["resultType"], task["taskId"], task["ttlMs"] > 0) == ("complete", created.task_id, True)
        assert task["createdAt"] == document["createdAt"] <= task["lastUpdatedAt"]
        result = CallToolResult.model_validate(task["result"])
        assert result.is_error is False
        row = result.structured_content
        assert row["state"] == "succeeded"
        assert "<untrusted-" in row["result"], "what a job returns is text of another"
        assert '{"n":2}' in row["result"]


async def test_a_tool_error_is_a_completed_task_and_an_abort_a_cancelled_one(
    served: McpNode, kind: str
) -> None:
    async with task_client(served.url, TOKEN, agent="amy") as client:
        failing = await client.submit(kind=kind, payload=1)
        await work(served, kind, failed("no disk", retry=False))
        task = await client.until(failing.task_id, "completed")
        assert task["result"]["isError"] is True
        assert "no disk" in task["result"]["content"][0]["text"]
        assert "error" not in task
        stopped = await client.submit(kind=kind, payload=2)
        for _ in range(2):  # the second time it has ended
            answer = await client.ask("tasks/cancel", stopped.task_id)
            assert (answer["resultType"], "taskId" in answer) == ("complete", False)
        assert (await client.get(stopped.task_id))["status"] == "cancelled"
        assert (await client.ask("tasks/cancel", failing.task_id))["resultType"] == "complete"
        assert (await client.get(failing.task_id))["status"] == "completed"


async def test_an_agent_needs_no_grant_to_follow_and_cancel_its_own_task(served: McpNode, kind: str) -> None:
    token = await served.token_of(f"bare-{kind}", f"job.schedule kind {kind}")
    async with task_client(served.url, token) as client:
        created = await client.submit(kind=kind)
        assert (await client.get(created.task_id))["status"] == "working"
        await client.ask("tasks/cancel", created.task_id)
        assert (await client.get(created.task_id))["status"] == "cancelled"


async def test_a_question_of_the_job_is_asked_and_answered(served: McpNode, kind: str) -> None:
    async with task_client(served.url, TOKEN, agent="amy") as client:
        created = await client.submit(kind=kind)
        question = Question("Which?</untrusted>", choices=["a", "b"])
        await work(served, kind, needs_input(question))
        task = await client.until(created.task_id, "input_required")
        ((key, asked),) = task["inputRequests"].items()
        assert asked["method"] == "elicitation/create"
        schema = asked["params"]["requestedSchema"]
        assert schema["properties"] == {"answer": {"type": "string", "enum": ["a", "b"]}}
        assert 'from="worker"' in asked["params"]["message"]
        ignored = {"other": {"action": "accept", "content": {"answer": "a"}}, key: {"action": "cancel"}}
        await client.ask("tasks/update", created.task_id, inputResponses=ignored)
        assert (await client.get(created.task_id))["status"] == "input_required"
        for content in ({"answer": "c"}, {}, None):
            wrong = {key: {"action": "accept", "content": content}}
            with pytest.raises(MCPError) as refused:
                await client.ask("tasks/update", created.task_id, inputResponses=wrong)
            assert refused.value.code == INVALID_PARAMS
        right = {key: {"action": "accept", "content": {"answer": "b"}}}
        answer = await client.ask("tasks/update", created.task_id, inputResponses=right)
        assert (answer["resultType"], "status" in answer) == ("complete", False)
        assert await work(served, kind, succeeded("done")) == "b"
        task = await client.until(created.task_id, "completed")
        assert (await client.ask("tasks/update", created.task_id, inputResponses=right))["resultType"]


async def test_a_client_that_can_not_be_asked_sees_a_task_that_works(served: McpNode, kind: str) -> None:
    async with task_client(served.url, TOKEN, agent="amy", elicits=False) as client:
        created = await client.submit(kind=kind)
        await work(served, kind, needs_input("Which?"))
        task = await client.get(created.task_id)
        assert (task["status"], "inputRequests" in task) == ("working", False)
        assert "vox-mesh job answer" in task["statusMessage"]


async def test_a_job_that_needs_an_approval_is_a_task_that_waits_for_it(served: McpNode, kind: str) -> None:
    token = await served.token_of(f"asks-{kind}", "ask job.schedule", "mesh.read")
    async with task_client(served.url, token) as client:
        first, second = [await client.submit(kind=kind, payload=n) for n in (1, 2)]
        assert first.document["status"] == "input_required"
        approvals = []
        for created in (first, second):
            ((key, asked),) = (await client.get(created.task_id))["inputRequests"].items()
            assert f"vox-mesh approvals approve {key}" in asked["params"]["message"]
            accepted = {key: {"action": "accept", "content": {}}}
            await client.ask("tasks/update", created.task_id, inputResponses=accepted)
            assert (await client.get(created.task_id))["status"] == "input_required", "no client approves"
            approvals.append(key)
        await served.node.approvals.approve(approvals[0])
        declined = {approvals[1]: {"action": "decline"}}
        await client.ask("tasks/update", second.task_id, inputResponses=declined)
        ended = await client.get(second.task_id)
        assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
        await work(served, kind, succeeded(1))
        assert (await client.until(first.task_id, "completed"))["result"]["isError"] is False


async def test_the_plain_result_is_for_clients_that_do_not_declare_the_extension(
    served: McpNode, kind: str
) -> None:
    async with task_client(served.url, TOKEN, agent="amy", declares=False) as client:
        result = await client.call("submit", kind=kind, payload=1)
        assert isinstance(result, CallToolResult)
        assert result.structured_content["is_new"] is True
        for method in _METHODS:
            with pytest.raises(MCPError) as refused:
                await client.ask(method, "a" * 32, inputResponses={})
            assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert refused.value.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    async with served.client(TOKEN, mode=LEGACY, agent="amy") as legacy:
        assert (await call(legacy, "submit", kind=kind, payload=2))["is_new"] is True
    async with task_client(served.url, TOKEN, agent="amy") as client:
        again = await client.call("submit", kind=kind, payload=1)
        assert isinstance(again, CallToolResult), "a job that exists has no new task"
        assert again.structured_content["is_new"] is False
        waited = await client.call("submit", kind=kind, payload=3, wait_s=0.01)
        assert isinstance(waited, CallToolResult)
        bad = await client.call("submit", kind="Not A Kind")
        assert isinstance(bad, CallToolResult)
        assert bad.is_error


async def test_tasks_of_others_and_guessed_ones_are_not_found(served: McpNode, kind: str) -> None:
    amy, eve = [await served.token_of(f"{name}-{kind}") for name in ("amy", "eve")]
    async with task_client(served.url, amy) as mine, task_client(served.url, eve) as foreign:
        created = await mine.submit(kind=kind)
        errors = []
        for task_id in (created.task_id, "a" * 32, "x", created.document["statusMessage"]):
            for method in _METHODS:
                with pytest.raises(MCPError) as refused:
                    await foreign.ask(method, task_id, inputResponses={})
                errors.append((refused.value.code, refused.value.message))
        assert {code for code, _ in errors} == {INVALID_PARAMS}
        assert len({message for _, message in errors}) == 1, "nothing tells which of them exist"
        assert (await mine.get(created.task_id))["status"] == "working"


async def test_the_header_must_name_the_task(served: McpNode, kind: str) -> None:
    async with task_client(served.url, TOKEN, agent="amy") as client:
        created, other = [await client.submit(kind=kind, payload=n) for n in (1, 2)]
        for method in _METHODS:
            with pytest.raises(MCPError) as refused:
                await client.ask_under_another_name(method, created.task_id, other.task_id)
            assert refused.value.code == HEADER_MISMATCH
        assert (await client.get(created.task_id))["status"] == "working"
        with pytest.raises(MCPError) as unknown:
            await client.ask("tasks/list", created.task_id)
        assert unknown.value.code == METHOD_NOT_FOUND
