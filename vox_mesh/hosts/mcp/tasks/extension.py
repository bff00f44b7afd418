"""The Tasks extension: `submit` returns a task to clients that declare it. It imports the SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from vox_mesh.errors import BadValue, CircuitOpen, DatabaseBusy, DatabaseUnavailable, Unreachable
from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.hosts.mcp.definitions import SUBMIT
from vox_mesh.hosts.mcp.results import call_result
from vox_mesh.hosts.mcp.tasks.elicitation import ACCEPT, DECLINE, answer_of
from vox_mesh.hosts.mcp.tasks.wire import EXTENSION, detailed_task, result_of_task, task_of
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.hosts.mcp.toolbox import ToolResult, error_line
from vox_mesh.hosts.mcp.tools.work import manifest_of
from vox_mesh.views.agents.mcp_tasks import POLL_MS

Context = ServerRequestContext[Any, Any]
FindCaller = Callable[[Context], ToolCaller]

_LISTEN: Final = "subscriptions/listen"
_MAX_RESPONSES: Final = 16
_WITHOUT_TASK: Final = frozenset({"job_not_new", "too_many_tasks"})
"""The refusals of a task for a job that can be scheduled without one."""

_AWAY: Final = frozenset({DatabaseUnavailable.code, Unreachable.code, CircuitOpen.code, DatabaseBusy.code})
"""While the database is unreachable, a job is spooled, and has no task."""

_INVALID: Final = frozenset({"not_known", "bad_value", "bad_path", "bad_body", "not_json"})


class TaskParams(RequestParams):
    """The task of a request."""

    task_id: str = Field(alias="taskId", max_length=1_024)


class UpdateTaskParams(TaskParams):
    """A task, and what its client answers, by the ids of the questions."""

    input_responses: dict[str, Any] = Field(alias="inputResponses", max_length=_MAX_RESPONSES)


class TasksExtension(Extension):
    """Serves tasks. Everything about them is in the mesh: any node can, and none has to be the same."""

    identifier = EXTENSION

    def __init__(self, caller_of: FindCaller) -> None:
        self._caller_of = caller_of

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods that the extension adds."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateTaskParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """Have `submit` return a task, if the client declares the extension in this request.

        A call that waits for the end of its job gets the plain result, as do jobs that can't have a task.
        """
        if params.name != SUBMIT.name or not has_declared(ctx):
            return await call_next(ctx)
        try:
            arguments = SUBMIT.check(params.arguments or {})
        except BadValue:
            return await call_next(ctx)  # which says what is wrong
        if arguments.get("wait_s"):
            return await call_next(ctx)
        call = ToolCall(self._caller_of(ctx), arguments)
        try:
            return await create_task(call.caller, manifest_of(call), new=bool(arguments.get("again")))
        except OperationFailed as error:
            if error.code in _AWAY or error.more.get("reason") in _WITHOUT_TASK:
                return await call_next(ctx)
            return call_result(ToolResult(None, error_line(error.code, error.detail, error.hint)))

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        """Return a task; while it works, wait a moment for a change."""
        check_request(ctx, params.task_id)
        caller = self._caller_of(ctx)
        task = await _perform(caller, "show_task", params.task_id, query={"wait": POLL_MS / 1_000})
        call = ToolCall(caller, {"full": True})
        document = detailed_task(call, task, can_elicit=_can_elicit(ctx))
        if task["status"] == "completed":
            result = call_result(result_of_task(call, task))
            document["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return document

    async def _update(self, ctx: Context, params: UpdateTaskParams) -> HandlerResult:
        """Answer what the task asks; answers to anything else are ignored."""
        check_request(ctx, params.task_id)
        caller = self._caller_of(ctx)
        task = await _perform(caller, "show_task", params.task_id)
        if task["status"] == "input_required":
            await _respond(caller, task, params.input_responses)
        return {}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        """Abort the job of a task."""
        check_request(ctx, params.task_id)
        await _perform(self._caller_of(ctx), "cancel_task", params.task_id)
        return {}


async def create_task(
    caller: ToolCaller, manifest: Mapping[str, Any], *, new: bool = False
) -> dict[str, Any]:
    """Schedule a job, and return its task as the result of a tool. Raises `OperationFailed`."""
    task = await caller.perform("create_task", body={"manifest": dict(manifest), "new": new})
    return {"resultType": "task", **task_of(task)}


def has_declared(ctx: Context) -> bool:
    """Return whether the client declares the extension in this request."""
    capabilities = ctx.session.client_capabilities
    declared = None if capabilities is None else capabilities.extensions
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (declared or {})


def check_declared(ctx: Context) -> None:
    """Raise the error of the protocol if the client does not declare the extension."""
    if not has_declared(ctx):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"client must declare {EXTENSION}", required)


def check_request(ctx: Context, task_id: str) -> None:
    """Raise the error of the protocol for a request about a task that must not be answered."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
    if ctx.request is not None and _name_in_header(ctx) != task_id:
        raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header must be the taskId of the request")
    check_declared(ctx)


def _name_in_header(ctx: Context) -> str | None:
    name: str | None = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))  # type: ignore[union-attr]
    return name


def _can_elicit(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


async def refuse_undeclared_watch(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Refuse to notify a client of tasks that does not declare the extension; none is notified."""
    if ctx.method == _LISTEN and ctx.params is not None:
        wanted = ctx.params.get("notifications")
        if isinstance(wanted, Mapping) and wanted.get("taskIds"):
            check_declared(ctx)
    return await call_next(ctx)


async def _respond(caller: ToolCaller, task: Mapping[str, Any], responses: Mapping[str, Any]) -> None:
    question, approval_id = task["question"], task["approval_id"]
    for key, response in responses.items():
        action = response.get("action") if isinstance(response, Mapping) else None
        if question is not None and key == question["question_id"] and action == ACCEPT:
            try:
                answer = answer_of(question, response.get("content"))
            except BadValue as error:
                raise MCPError(INVALID_PARAMS, error_line(error.code, str(error), error.hint)) from None
            body = {"question_id": key, "answer": answer}
            await _perform(caller, "answer_task", task["task_id"], body=body)
        elif key == approval_id and action == DECLINE:
            await _perform(caller, "cancel_task", task["task_id"])


async def _perform(caller: ToolCaller, operation: str, task_id: str, **inputs: Any) -> Any:
    """Perform an operation on a task. Raises the error of the protocol if it fails."""
    try:
        return await caller.perform(operation, path={"task": task_id}, **inputs)
    except OperationFailed as error:
        code = INVALID_PARAMS if error.code in _INVALID else INTERNAL_ERROR
        raise MCPError(code, error_line(error.code, error.detail, error.hint)) from None
