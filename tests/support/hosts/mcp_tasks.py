"""The SDK's client with the Tasks extension: it gets tasks, and asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import httpx2
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, Request, Result
from pydantic import ConfigDict

from tests.support.messages.relaying import PATIENCE_S
from vox_mesh.hosts.mcp.tasks.wire import EXTENSION

MODERN: Final = "2026-07-28"


class _Answer(Result):
    """Any result, with all its members."""

    model_config = ConfigDict(extra="allow")


class CreatedTask(Result):
    """A task in place of the result of a tool."""

    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"

    @property
    def document(self) -> dict[str, Any]:
        """All of it."""
        return self.model_dump(by_alias=True)

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return str(self.document["taskId"])


class _Tasks(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_unexpected)]


async def _unexpected(_: CreatedTask, __: ClaimContext) -> CallToolResult:
    raise AssertionError("tests follow tasks themselves")


async def _decline(context: Any, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError(f"tests answer themselves: {context} {params}")


class _TaskRequest(Request[dict[str, Any], str]):
    name_param = "taskId"


class _MisnamedRequest(Request[dict[str, Any], str]):
    name_param = "other"


class TaskClient:
    """A client that follows tasks."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def submit(self, **arguments: Any) -> CreatedTask:
        """Submit a job, and get a task."""
        result = await self.call("submit", **arguments)
        assert isinstance(result, CreatedTask), result
        return result

    async def call(self, tool: str, **arguments: Any) -> Result:
        """Call a tool, whatever its result is."""
        found: Result = await self.client.session.call_tool(tool, arguments, allow_claimed=True)
        return found

    async def ask(self, method: str, task_id: str, **more: Any) -> dict[str, Any]:
        """Send a request about a task."""
        request = _TaskRequest(method=method, params={"taskId": task_id, **more})
        return await self.send(request)

    async def ask_under_another_name(self, method: str, task_id: str, name: str) -> dict[str, Any]:
        """Send a request about a task whose header names another."""
        request = _MisnamedRequest(
            method=method, params={"taskId": task_id, "other": name, "inputResponses": {}}
        )
        return await self.send(request)

    async def send(self, request: Request[Any, Any]) -> dict[str, Any]:
        """Send any request, and get what the server answers."""
        answer = await self.client.session.send_request(request, _Answer)
        return answer.model_dump(by_alias=True, mode="json", exclude_unset=True)

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task now."""
        return await self.ask("tasks/get", task_id)

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """The task once it has one of these statuses: each request waits at the node."""
        while (task := await self.get(task_id))["status"] not in statuses:
            assert task["status"] in ("working", "input_required"), task
        return task


@asynccontextmanager
async def task_client(
    url: str, token: str, *, declares: bool = True, elicits: bool = True, agent: str | None = None
) -> AsyncIterator[TaskClient]:
    """The SDK's client of a node, with the extension or without."""
    headers = {"Authorization": f"Bearer {token}"} | ({} if agent is None else {"Vox-Agent": agent})
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        extensions = [_Tasks()] if declares else []
        callback = _decline if elicits else None
        async with Client(
            transport, mode=MODERN, cache=None, extensions=extensions, elicitation_callback=callback
        ) as client:
            yield TaskClient(client)
