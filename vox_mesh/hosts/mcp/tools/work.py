"""The tools for jobs."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.hosts.mcp.rows import JOB_DIGITS, job_row, present, taken_row
from vox_mesh.hosts.mcp.tool_call import ToolCall

_EXEC: Final = "exec"
_TIMEOUT_S: Final = 600
_LEASE_S: Final = 900.0
_SUCCEEDED: Final = "succeeded"
_NEED_TEXT: Final = {"failed": "give the reason in text", "needs_input": "ask in text"}


async def submit(call: ToolCall) -> dict[str, Any]:
    """Schedule a job, and wait for its end if asked to."""
    scheduled = await schedule(call)
    return await result_of_submit(call, scheduled)


async def schedule(call: ToolCall) -> dict[str, Any]:
    """Schedule the job of a call; return what the API answers."""
    body = {"manifests": [manifest_of(call)], **call.given(new="again")}
    (scheduled,) = await call.caller.perform("schedule_jobs", body=body)
    return dict(scheduled)


def manifest_of(call: ToolCall) -> dict[str, Any]:
    """Return the manifest of the job that a call of `submit` describes."""
    manifest: dict[str, Any] = call.given(
        kind="kind",
        payload="payload",
        command="command",
        timeout="timeout_s",
        after="after",
        priority="priority",
    )
    if manifest["kind"] == _EXEC:
        manifest.setdefault("timeout", _TIMEOUT_S)
    elif "payload" not in manifest:
        manifest["payload"] = None
    return manifest


async def result_of_submit(call: ToolCall, scheduled: dict[str, Any]) -> dict[str, Any]:
    """Return the answer about a scheduled job: with `wait_s`, its state then, and its result if any."""
    row = {"job": scheduled["job_id"][:JOB_DIGITS], "is_new": scheduled["is_new"]}
    if not call.arguments.get("wait_s"):
        return {**row, "next": "look what=job, or submit with wait_s"}
    path, query = {"job": scheduled["job_id"]}, {"timeout": call.arguments["wait_s"]}
    job = await call.caller.perform("wait_for_job", path=path, query=query)
    answer = row | job_row(call, job)
    if call.is_full:
        answer["all"] = call.fence(job, author=f"job:{row['job']}")
    if job["state"] == _SUCCEEDED:
        answer |= await result_of_job(call, scheduled["job_id"])
    return answer


async def result_of_job(call: ToolCall, job_id: str) -> dict[str, Any]:
    """Return the result of a job that has succeeded, fenced; nothing if it has none."""
    found = await call.caller.perform("read_job_result", path={"job": job_id})
    if found["result"] is None:
        return {}
    return {"result": call.fence(found["result"], author=f"job:{job_id[:JOB_DIGITS]}")}


async def take(call: ToolCall) -> dict[str, Any]:
    """Take a ready job."""
    call.agent  # noqa: B018 - it must be known
    body = {"lease": call.arguments.get("lease_s", _LEASE_S), **call.given(kinds="kinds", wait="wait_s")}
    taken = await call.caller.perform("take_jobs", body=body)
    next_step = "do it, then report with job and token" if taken else "none is ready: wait with wait_s"
    return {"taken": [taken_row(call, each) for each in taken], "next": next_step}


async def report(call: ToolCall) -> dict[str, Any]:
    """Report on a taken job."""
    path, outcome = {"job": call.arguments["job"]}, call.arguments["outcome"]
    claim = {"claim_token": call.arguments["token"], **call.given(usage="usage")}
    if outcome == "progress":
        return await _report_progress(
            call.caller, path, {**claim, **call.given(fraction="fraction", message="text")}
        )
    body: dict[str, Any] = {**claim, "outcome": outcome, **call.given(result="result")}
    text = call.arguments.get("text")
    if text is None and outcome in _NEED_TEXT:
        detail = f"argument text must be given with {outcome}"
        raise OperationFailed("bad_argument", detail, _NEED_TEXT[outcome])
    if outcome == "needs_input":
        body["question"] = {"text": text, **call.given(choices="choices")}
    elif text is not None:
        body["reason"] = text
    return job_row(call, await call.caller.perform("report_job", path=path, body=body))


async def _report_progress(caller: ToolCaller, path: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    noted = await caller.perform("report_job_progress", path=path, body=body)
    renewed = await caller.perform("renew_job", path=path, body={"claim_token": body["claim_token"]})
    return present(job=noted["job_id"][:JOB_DIGITS], lease_s=round(renewed["lease_ms"] / 1_000))
