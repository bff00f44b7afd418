"""Approvals over HTTP and by commands: what was asked is shown exactly, decided on, and waited for."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import commands_of, printed
from tests.support.nodes.serving import READ_TOKEN, ServedNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

HIDDEN: Final = "safe\u202e\x1b[2Kevil"
"""Text that a terminal would show otherwise."""


async def ask(served: ServedNode) -> dict[str, Any]:
    """Have an agent ask for a job over HTTP; the problem that answers it."""
    body = {"manifests": [{"kind": "notes.add", "payload": {"text": HIDDEN}}]}
    answer = await served.ask("POST", "/v1/jobs", body, headers={"Vox-Agent": "amy"})
    assert_problem(answer, HTTPStatus.FORBIDDEN, "approval_pending")
    problem: dict[str, Any] = answer.json()
    return problem


async def test_what_is_asked_is_shown_exactly_and_applied_when_it_is_approved(served: ServedNode) -> None:
    await served.node.grants.admit("amy")
    grant = await served.node.grants.issue("amy", ["ask job.schedule"])
    name = (await ask(served))["approval_id"]
    found = await served.all("/v1/approvals", limit=1)
    assert found == [await served.get(f"/v1/approvals/{name}")] == await printed(served, "approvals", "list")
    (asked,) = found
    assert (asked["agent"], asked["grant_id"], asked["state"]) == ("amy", grant.grant_id, "pending")
    assert (asked["operation"], asked["asks_for"]) == ("ScheduleJob", ["job.schedule kind notes.add"])
    assert asked["arguments"]["jobs"][0]["manifest"]["payload"] == {"text": HIDDEN}
    shown = (await asyncio.to_thread(commands_of(served), "approvals", "show", name)).out
    assert shown.isascii()
    assert "\x1b" not in shown
    assert r"safe\u202e\u001b[2Kevil" in shown
    assert (await served.get(f"/v1/approvals/{name}/wait", timeout=0))["state"] == "pending"
    waiting = asyncio.create_task(served.get(f"/v1/approvals/{name}/wait", timeout="50s"))
    own = await served.ask("POST", f"/v1/approvals/{name}/approve", {}, headers={"Vox-Agent": "amy"})
    assert_problem(own, HTTPStatus.FORBIDDEN, "refused")
    reading = await served.ask("POST", f"/v1/approvals/{name}/approve", {}, token=READ_TOKEN)
    assert reading.status_code == HTTPStatus.FORBIDDEN
    done = await served.post(f"/v1/approvals/{name}/approve", {"reason": "fine"})
    assert (done["state"], done["reason"]) == ("applied", "fine")
    assert await waiting == done
    assert (await served.get(f"/v1/jobs/{done['jobs'][0]}"))["kind"] == "notes.add"
    assert await served.all("/v1/approvals") == []
    again = await served.ask("POST", f"/v1/approvals/{name}/deny", {})
    assert_problem(again, HTTPStatus.CONFLICT, "refused")


async def test_commands_ask_decide_and_wait(served: ServedNode) -> None:
    await served.node.grants.admit("amy")
    await served.node.grants.issue("amy", ["ask job.schedule"])
    vox, ended = commands_of(served), []

    async def run(*arguments: str) -> Any:
        ended.append(await asyncio.to_thread(vox.having(VOX_AGENT_ID="amy"), *arguments))
        return ended[-1]

    asked = await run("job", "schedule", "--kind", "notes.add")
    assert (asked.code, asked.error.count("\n")) == (5, 1)
    (name,) = [each["approval_id"] for each in await printed(served, "approvals", "list")]
    assert f"vox-mesh approvals wait {name}" in asked.error
    for command in (["status"], ["top", "--once"]):
        assert "vox-mesh approvals list" in (await run(*command)).out
    assert (await run("approvals", "wait", name, "--timeout", "0s")).code == 5
    assert (await run("approvals", "approve", name)).code == 1  # its own
    denied = await asyncio.to_thread(vox, "approvals", "deny", name, "--reason", "not now")
    assert (denied.code, "denied" in denied.out) == (0, True)
    assert (await run("approvals", "wait", name)).code == 1
    second = (await ask(served))["approval_id"]
    approved = await asyncio.to_thread(vox, "approvals", "approve", second)
    assert (approved.code, "applied" in approved.out) == (0, True)
    assert (await run("approvals", "wait", second)).code == 0
    states = {
        each["approval_id"]: each["state"] for each in await printed(served, "approvals", "list", "--all")
    }
    assert (states[name], states[second]) == ("denied", "applied")
