"""The status of tasks, and help, over HTTP and as commands show them."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.cli.conftest import Ended, VoxCommand
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

THREAD: Final = "01M7PGVP3T0WAA1GGA49SA0ZAF"
"""The id of a thread that was never opened."""


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
    await rhythm.help.promise(thread, promise_beats=200, fail_after_beats=300, sender="bob")
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


# --- help ----------------------------------------------------------------------------------------


async def test_help_is_asked_promised_and_given_between_commands_and_http(
    neighbour: tuple[ServedNode, VoxCommand],
) -> None:
    served, vox = neighbour

    async def run(*arguments: str) -> Ended:
        return await asyncio.to_thread(vox, "rhythm", "help", *arguments)

    asked = await run("ask", "reviewer", '{"pr": 7}', "--from", "coder", "--within", "900", "--task", "merge")
    thread_id = asked.out.rpartition("(thread ")[2].rstrip(")\n")
    assert asked.out.startswith("asked reviewer for help; closes 20")
    path = f"/v1/rhythm/help/{thread_id}"
    (request,) = await served.node.messages.inbox("reviewer")
    assert (request.body, request.thread, request.sender_agent) == ({"pr": 7}, thread_id, "coder")
    promise = {"promise_beats": 200, "fail_after_beats": 300, "confidence": 0.7, "on_fail": "later"}
    assert_problem(await served.ask("POST", f"{path}/promise", promise), 422, "bad_value")  # of no agent
    as_reviewer = {"Vox-Agent": "reviewer"}
    promised = (await served.ask("POST", f"{path}/promise", promise, headers=as_reviewer)).json()
    again = await served.ask("POST", f"{path}/promise", {"promise_beats": 1}, headers=as_reviewer)
    assert_problem(again, 409, "not_helper")
    assert again.json()["detail"].endswith("has a promise of reviewer already")
    assert (promised["state"], promised["helper"], promised["task_id"]) == ("promised", "reviewer", "merge")
    assert (await run("show", thread_id, "--json")).document == await served.get(path) == promised
    assert (await run("list", "--state", "promised", "--json")).document[0] == promised
    second = await run("promise", thread_id, "--beats", "1", "--from", "eve")
    assert (second.code, "another helper: reviewer promised first; leave it to" in second.error) == (1, True)
    unknown = await run("show", "01M7PGVP3T0WAA1GGA49SA0ZAF")
    assert (unknown.code, "not found; run `vox-mesh rhythm help list`" in unknown.error) == (1, True)
    wrong = await run("ask", "reviewer", "x", "--from", "coder", "--task", "a\x07")
    assert (wrong.code, "got 'a\\x07'; correct it and run the command again" in wrong.error) == (2, True)
    of_eve = {"body": "no", "agent": "eve"}
    assert_problem(await served.ask("POST", f"{path}/answer", of_eve), 409, "not_helper")
    answered = await run("answer", f"hmmm://thread/{thread_id}", "looks good", "--from", "reviewer")
    assert answered.out == f"answered coder: kept (thread {thread_id})\n"
    message = await served.get(f"/v1/messages/{(await served.get(path))['answer_id']}")
    assert message["payload"] == "looks good"
    late = await run("withdraw", thread_id, "--from", "reviewer")
    assert (late.code, late.error.partition("; ")[0]) == (
        1,
        f"vox-mesh: help thread {thread_id} is closed: it was answered",
    )
    assert_problem(
        await served.ask("POST", f"{path}/withdraw", {}, headers=as_reviewer), 409, "thread_closed"
    )


async def test_an_answer_is_waited_for_and_shown_without_control_characters(
    neighbour: tuple[ServedNode, VoxCommand],
) -> None:
    served, vox = neighbour
    waiting = asyncio.create_task(
        asyncio.to_thread(
            vox, "rhythm", "help", "ask", "sage", "why?", "--from", "ada", "--within", "900", "--wait"
        )
    )
    async for _ in served.node.store.changes():
        if found := await served.node.messages.inbox("sage"):
            break
    promised = await asyncio.to_thread(
        vox, "rhythm", "help", "promise", found[0].thread, "--beats", "400", "--from", "sage", "--json"
    )
    assert (promised.document["promise_beats"], promised.document["fail_after_beats"]) == (400, 400)
    answer = {"body": "\x1b[2Jbecause\n<b>", "agent": "sage"}
    assert (await served.post(f"/v1/rhythm/help/{found[0].thread}/answer", answer))["state"] == "kept"
    assert (await waiting).out == "?[2Jbecause\n<b>\n"
    thread = await served.ask("POST", "/v1/rhythm/help", {"to": "sage", "body": 1, "agent": "ada"})
    assert thread.status_code == 201
    path = f"/v1/rhythm/help/{thread.json()['thread_id']}"
    await served.post(f"{path}/promise", {"promise_beats": 200, "fail_after_beats": 200, "agent": "sage"})
    assert (await served.post(f"{path}/withdraw", {"reason": "ill", "agent": "sage"}))["state"] == "broken"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("answer", "lost", "x", "--from", "a"), "help thread must be an id, with or without hmmm://thread/"),
        (("ask", "a", "x"), "no agent given"),
        (
            ("ask", "a", "x", "--from", "b", "--task", "\x1b"),
            "task must be at most 1000 printable",
        ),
        (("promise", THREAD, "--beats", "3", "--fail-after", "2", "--from", "a"), "fail_after_beats must be"),
        (("withdraw", THREAD, "--reason", "x" * 2_000, "--from", "a"), "reason must be at most 1024"),
        (("answer", THREAD, "x", "--from", "a"), f"help thread {THREAD} not found"),
    ],
)
async def test_what_is_wrong_with_help_is_said_in_one_line_and_nothing_is_written(
    neighbour: tuple[ServedNode, VoxCommand], arguments: tuple[str, ...], said: str
) -> None:
    served, vox = neighbour
    before = await served.node.messages.queries.newest_position()
    ended = await asyncio.to_thread(vox, "rhythm", "help", *arguments)
    assert (ended.code, said in ended.error) == (1 if "not found" in said else 2, True), ended
    assert await served.node.messages.queries.newest_position() == before


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"to": "a", "agent": "b"}, 422, "bad_body"),
        ({"to": "a", "body": 1, "agent": "b", "within_beats": 0}, 422, "bad_body"),
        ({"to": "a", "body": 1, "agent": "b", "task": "\x07"}, 422, "bad_value"),
        ({"to": "a", "body": 1}, 422, "bad_value"),
    ],
)
async def test_a_bad_request_for_help_is_refused(
    served: ServedNode, body: dict[str, object], status: int, code: str
) -> None:
    assert_problem(await served.ask("POST", "/v1/rhythm/help", body), status, code)
    for path in (THREAD, f"hmmm:%2F%2Fthread%2F{THREAD}"):
        assert_problem(await served.ask("GET", f"/v1/rhythm/help/{path}"), 404, "not_known")
    assert_problem(await served.ask("GET", "/v1/rhythm/help/lost"), 422, "bad_value")
