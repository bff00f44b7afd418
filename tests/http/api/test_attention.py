"""What needs a person, over HTTP: each kind is listed until its action in place is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
import pytest
import pytest_asyncio

from tests.support.jobs.staging import end, schedule, start
from tests.support.messages.messaging import PATIENCE_S, change, write
from tests.support.nodes.api_scene import approval, conflict
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import READ_TOKEN, ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import SHARED_HOMES
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.jobs.work.reports import needs_input
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key
from vox_mesh.store.schema.statements import named
from vox_mesh.views.live import attention
from vox_mesh.views.live.stuck import LONG_WAIT_MS, NO_PROGRESS_MS

pytestmark = pytest.mark.asyncio(loop_scope="module")

_OF_MESH: Final = "WHERE scope_id = ?1 AND repository_id = ?2"
_SECRET: Final = "a body that is for its receiver"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SHARED_HOMES, ids=str)
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServedNode]:
    """A node on each home that can be shared, and a client of its API."""
    server = request.getfixturevalue("shared_server") if request.param.needs_server else None
    shared_mesh = SharedMesh(request.param, tmp_path_factory.mktemp("mesh"), server, new_key())
    async with serving_api(shared_mesh) as served:
        yield served


async def _listed(served: ServedNode, kind: str) -> list[Any]:
    document = await served.get("/v1/attention")
    found = [each for each in document["items"] if each["kind"] == kind]
    assert document["counts"][kind] == len(found)
    return found


async def _one(served: ServedNode, kind: str) -> Any:
    (item,) = await _listed(served, kind)
    assert item["since_ms"] > 0
    assert item["title"]
    return item


async def test_a_conflict_is_listed_until_it_is_resolved(served: ServedNode) -> None:
    conflict_id = await conflict(served.node, "row")
    item = await _one(served, "conflict")
    assert (item["id"], item["urgency"], item["link"]["screen"]) == (conflict_id, "now", "conflict")
    assert (item["more"]["table_name"], item["more"]["left_by"]) == ("memories", "coder")
    await served.post(f"/v1/conflicts/{item['more']['conflict_id']}/resolve", {"take": "left"})
    assert await _listed(served, "conflict") == []


@pytest.mark.parametrize(("asked_of", "urgency"), [(None, "now"), ("lead", "later")])
async def test_a_question_is_listed_with_its_choices_until_it_is_answered(
    served: ServedNode, asked_of: str | None, urgency: str
) -> None:
    node, kind = served.node, f"ask.{new_key().lower()}"
    job = await node.jobs.schedule(kind)
    (taken,) = await node.work.take("coder", [kind], wait=PATIENCE_S)
    question = Question("Which branch?\nThere are two.", choices=["main", "next"], to=asked_of)
    await node.work.report(job, taken.claim_token, needs_input(question))
    item = await _one(served, "question")
    assert (item["title"], item["urgency"]) == ("Which branch?", urgency)
    assert item["more"]["choices"] == ["main", "next"]
    assert item["more"]["text"] == "Which branch?\nThere are two."
    await served.post(f"/v1/jobs/{item['more']['job_id']}/answer", {"answer": "next"})
    assert await _listed(served, "question") == []


async def test_an_approval_is_listed_until_it_is_decided(served: ServedNode) -> None:
    approval_id = await approval(served.node)
    item = await _one(served, "approval")
    assert (item["id"], item["more"]["agent"], item["urgency"]) == (approval_id, "asker", "now")
    (asks_for,) = item["more"]["asks_for"]
    assert item["title"].endswith(asks_for)
    await served.post(f"/v1/approvals/{approval_id}/deny", {})
    assert await _listed(served, "approval") == []


async def test_a_dead_letter_is_listed_without_its_body_until_it_is_sent_again(served: ServedNode) -> None:
    messages = served.node.messages
    await messages.send("z", {"text": _SECRET}, sender="a", max_attempts=1)
    (held,) = await messages.poll_inbox_from_db("z")
    await messages.nack(held, retry_in=0, reason="it does not parse")
    item = await _one(served, "dead_letter")
    assert (item["detail"], item["more"]["receiver_agent"]) == ("it does not parse", "z")
    for token in (READ_TOKEN, None):
        answer = await served.ask("GET", "/v1/attention", **({} if token is None else {"token": token}))
        assert answer.status_code == 200
        assert _SECRET not in answer.text
    await served.post(f"/v1/messages/{item['more']['message_uuid']}/retry")
    assert await _listed(served, "dead_letter") == []


async def test_a_late_acknowledgement_is_listed_until_it_is_there(served: ServedNode) -> None:
    messages = served.node.messages
    sent = await messages.send("late", "answer me", sender="a", ack_within=3_600)
    assert await _listed(served, "overdue_ack") == []
    (held,) = await messages.poll_inbox_from_db("late")
    await change(served.node, [sent], ack_by_ms=1)
    item = await _one(served, "overdue_ack")
    assert (item["id"], item["since_ms"]) == (sent.message_uuid, 1)
    await messages.ack(held)
    assert await _listed(served, "overdue_ack") == []


async def test_a_failed_job_is_listed_for_a_day_unless_it_is_retried(served: ServedNode) -> None:
    node = served.node
    for _ in range(2):
        await end(node, await schedule(node), JobState.FAILED)
    first, second = await _listed(served, "failed_job")
    await served.post(f"/v1/jobs/{first['more']['job_id']}/retry")
    assert await _listed(served, "failed_job") == [second]
    await write(
        node,
        f"UPDATE jobs SET ended_ms = ended_ms - ?3 {_OF_MESH} AND job_id = ?4",
        attention.RECENT_MS,
        second["id"],
    )
    assert await _listed(served, "failed_job") == []


async def test_promises_that_are_late_or_broken_are_listed(served: ServedNode) -> None:
    node = served.node
    thread = await node.rhythm.help.ask("helper", "how?", sender="coder")
    await node.rhythm.help.promise(thread.thread_id, promise_beats=100, sender="helper")
    assert await _listed(served, "broken_promise") == []
    await write(node, f"UPDATE help_threads SET due_ms = 1 {_OF_MESH}")
    item = await _one(served, "broken_promise")
    assert (item["more"]["state"], item["urgency"]) == ("promised", "soon")
    assert item["title"] == "helper is late with the help promised to coder"
    await write(node, f"UPDATE help_threads SET state = 'broken', ended_ms = asked_ms {_OF_MESH}")
    item = await _one(served, "broken_promise")
    assert (item["more"]["state"], item["urgency"]) == ("broken", "later")
    await write(node, f"DELETE FROM help_threads {_OF_MESH}")


async def test_a_budget_is_listed_from_four_fifths_on(served: ServedNode) -> None:
    node = served.node
    await node.rhythm.budgets.set("account:acme", Budget(max_bu=10, max_money="20.00 USD"))
    spend = f"UPDATE spend_limits SET spent = ?3 {_OF_MESH}"
    await write(node, f"UPDATE budgets SET spent_bu = 7.9 {_OF_MESH}")
    await write(node, spend, 15_900_000)
    assert await _listed(served, "budget") == []
    await write(node, f"UPDATE budgets SET spent_bu = 8 {_OF_MESH}")
    await write(node, spend, 21_000_000)
    money, beats = await _listed(served, "budget")
    assert (beats["id"], beats["urgency"], beats["more"]["share"]) == ("account:acme beats", "soon", 0.8)
    assert (money["detail"], money["urgency"]) == ("21.00 of 20.00 USD", "now")
    await node.rhythm.budgets.remove("account:acme")
    assert await _listed(served, "budget") == []


async def test_a_node_that_died_is_listed_until_it_is_removed(served: ServedNode) -> None:
    async with Mesh.open(served.shared_mesh.settings("bob", http=False)):
        assert await _listed(served, "node_dead") == []
    assert await _listed(served, "node_dead") == []  # it has left
    silent = "left_ms = NULL, tick_ms = 1000, last_seen_ms = last_seen_ms - 60000"
    await write(served.node, f"UPDATE mesh_heartbeats SET {silent} {_OF_MESH} AND node_id = 'bob'")
    item = await _one(served, "node_dead")
    assert item["more"]["node_id"] == "bob"
    assert (await served.ask("DELETE", f"/v1/nodes/{item['id']}")).status_code == 200
    assert await _listed(served, "node_dead") == []


# --- stuck agents --------------------------------------------------------------------------------


@asynccontextmanager
async def _waiting(node: MeshNode, agent: str, key: str) -> AsyncIterator[None]:
    """An agent that waits for a key."""
    wait = asyncio.create_task(node.locks.acquire(key, agent=agent, wait=PATIENCE_S))
    try:
        sql = f"SELECT count(*) FROM lock_waiters {_OF_MESH} AND holder_agent = ?3"
        async with asyncio.timeout(PATIENCE_S):
            async for _ in node.store.changes():
                if (await node.store.read(sql, (*node.store.mesh_id, agent), fresh=True)).value:
                    break
        yield
    finally:
        wait.cancel()
        await asyncio.wait([wait])


async def test_agents_that_wait_for_each_other_are_stuck(served: ServedNode) -> None:
    node = served.node
    held = [
        await node.locks.acquire("file:src/*.py", agent="ada"),
        await node.locks.acquire("doc", agent="bob"),
    ]
    async with _waiting(node, "ada", "doc"):
        assert await _listed(served, "stuck_agent") == []
        async with _waiting(node, "bob", "file:src/main.py"):
            item = await _one(served, "stuck_agent")
            assert (item["urgency"], item["more"]["why"]) == ("now", "cycle")
            assert item["more"]["agents"] == ["ada", "bob"]
            assert item["more"]["lock_keys"] == ["doc", "file:src/*.py"]
    for each in held:
        await node.locks.release(each)
    assert await _listed(served, "stuck_agent") == []


async def test_an_agent_that_waits_long_for_a_lock_is_stuck(served: ServedNode) -> None:
    node = served.node
    held = await node.locks.acquire("slow", agent="ada")
    async with _waiting(node, "bob", "slow"):
        assert await _listed(served, "stuck_agent") == []
        since = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?3)"
        ago = f"-{LONG_WAIT_MS // 1_000 + 1} seconds"
        await write(node, f"UPDATE lock_waiters SET waits_since = {since} {_OF_MESH}", ago)
        item = await _one(served, "stuck_agent")
        assert (item["id"], item["more"]["why"]) == ("bob", "lock")
        assert (item["more"]["holder_agent"], item["more"]["lock_keys"]) == ("ada", ["slow"])
    await node.locks.release(held)


async def test_a_running_job_without_any_sign_is_stuck_until_it_gives_one(served: ServedNode) -> None:
    node = served.node
    job_id = await schedule(node)
    await start(node, job_id)
    await write(node, named("job_notes")["note"], job_id, 1, 0.1, None, None, None, None)
    assert await _listed(served, "stuck_agent") == []
    await write(node, f"UPDATE jobs SET started_ms = started_ms - ?3 {_OF_MESH}", 2 * NO_PROGRESS_MS)
    assert await _listed(served, "stuck_agent") == []  # its note is new
    await write(node, f"UPDATE job_notes SET noted_ms = noted_ms - ?3 {_OF_MESH}", 2 * NO_PROGRESS_MS)
    item = await _one(served, "stuck_agent")
    assert (item["more"]["job_id"], item["more"]["why"]) == (job_id, "job")
    await write(node, named("job_notes")["note"], job_id, 1, 0.2, None, None, None, None)
    assert await _listed(served, "stuck_agent") == []


# --- the list ------------------------------------------------------------------------------------


async def test_the_most_urgent_and_oldest_come_first_and_all_are_counted(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = served.node
    for number in range(3):
        sent = await node.messages.send(f"late{number}", "x", sender="a", ack_within=3_600)
        await change(node, [sent], ack_by_ms=100 - number)
    conflict_id = await conflict(node, "urgent")
    monkeypatch.setattr(attention, "MAX_ITEMS", 3)
    document = await served.get("/v1/attention")
    assert [each["kind"] for each in document["items"]] == ["conflict", "overdue_ack", "overdue_ack"]
    assert [each["since_ms"] for each in document["items"][1:]] == [98, 99]
    assert document["counts"]["overdue_ack"] == 3
    monkeypatch.undo()
    await served.post(f"/v1/conflicts/{conflict_id}/resolve", {"take": "right"})
    await write(node, f"DELETE FROM a2a_messages {_OF_MESH} AND receiver_agent LIKE 'late%'")


async def test_planted_rows_hide_nothing_else(served: ServedNode) -> None:
    node = served.node
    sent = await node.messages.send("honest", "x", sender="a", ack_within=3_600)
    await change(node, [sent], ack_by_ms=1)
    invalid = "CAST(x'ff22fe' AS TEXT)"
    for table, columns, values in (
        ("job_questions", "job_id, question_id, asked_by, asked_ms, question", "'q', 'x', 'never', '-'"),
        ("budgets", "subject, document, since_ms, hlc, spent_bu", """'{"max_bu":"1"}', 'x', 'x', 'much'"""),
        (
            "help_threads",
            "thread_id, asker, state, asked_ms, closes_ms, due_ms",
            "1, 'promised', 'x', 'y', -1",
        ),
    ):
        names = f"scope_id, repository_id, {columns}"
        await write(node, f"INSERT INTO {table} ({names}) VALUES (?1, ?2, {invalid}, {values})")
    document = await served.get("/v1/attention")
    assert sent.message_uuid in [each["id"] for each in document["items"]]
    for table in ("job_questions", "budgets", "help_threads"):
        await write(node, f"DELETE FROM {table} {_OF_MESH}")
    await write(node, f"DELETE FROM a2a_messages {_OF_MESH} AND message_uuid = ?3", sent.message_uuid)


async def test_the_command_lists_the_same(served: ServedNode) -> None:
    if served.shared_mesh.case is not FILE:
        pytest.skip("the command reads it as the API does, wherever the data are")
    conflict_id = await conflict(served.node, "terminal")
    document = await served.get("/v1/attention")
    assert await printed(served, "attention") == orjson.loads(orjson.dumps(document))
    await served.post(f"/v1/conflicts/{conflict_id}/resolve", {"take": "right"})
