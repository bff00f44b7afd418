"""The status of tasks, and help, over HTTP and as commands show them."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_status_of_tasks_is_the_same_over_http_and_in_a_command(
    neighbour: tuple[ServedNode, VoxCommand],
) -> None:
    served, vox = neighbour
    path, rhythm = "/v1/rhythm/status", served.node.rhythm
    thread = await rhythm.help.ask("eve", "which way?", sender="cara", within_beats=100)
    hostile = "<b>\x1b[2J\nlost</b>"
    for claim in (
        {"agent_id": "cara", "task_id": "ask", "state": "waiting", "wait_for": [thread.address]},
        {"agent_id": "dan", "task_id": "write", "state": "executing", "notes": hostile, "score": "essay"},
        {"agent_id": "dan", "task_id": "read", "state": "done"},
    ):
        assert (await served.ask("POST", path, claim)).status_code == 202
    await rhythm.status.flush()
    shown = await served.all(path, limit=1)
    assert [(each["agent_id"], each["task_id"], each["state"], each["phase"]) for each in shown] == [
        ("cara", "ask", "waiting", None),
        ("dan", "read", "done", None),
        ("dan", "write", "executing", "work"),
    ]
    ask, _, write = shown
    assert (ask["wait_for"], ask["waits_on"], ask["node_id"]) == ([thread.address], ["eve"], "ann")
    assert (write["notes"], write["score"]) == (hostile, "essay")
    assert (await asyncio.to_thread(vox, "rhythm", "status", "--json")).document == shown
    await rhythm.help.promise(thread, promise_beats=2, fail_after_beats=3, sender="bob")
    (ask,) = await served.all(path, state="waiting", scope="")
    assert ask["waits_on"] == ["bob"]
    assert await served.all(path, agent="dan", score="essay") == [write]
    line = (await asyncio.to_thread(vox, "rhythm", "status", "--score", "essay")).out.splitlines()[1]
    assert line.split()[:4] == ["dan", "write", "work", "executing"]
    assert line.split()[-4:] == ["essay", "ann", "<b>?[2J", "lost</b>"]
    assert (await asyncio.to_thread(vox, "rhythm", "status", "--scope", "other")).out == "none\n"
    only = await asyncio.to_thread(vox, "rhythm", "status", "--limit", "1")
    assert only.err == "vox-mesh: only the first 1 tasks are listed; raise --limit to see more\n"
    for query, code in (
        ("scope=other", "bad_value"),
        ("state=lost", "bad_query"),
        ("cursor=MQ", "bad_cursor"),
    ):
        assert_problem(await served.ask("GET", f"{path}?{query}"), 422, code)
