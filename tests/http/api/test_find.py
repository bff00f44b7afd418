"""Search over HTTP: things by a part of their names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.api_scene import conflict
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from vox_mesh.views.find import MAX_FOUND

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOSTILE = "100%_of\"'--<b>"


async def found(served: ServedNode, text: str, sort: str | None = None) -> list[Any]:
    """What is found by a text, of one sort or of all."""
    items = (await served.get("/v1/find", q=text))["items"]
    return [each for each in items if sort in (None, each["sort"])]


async def test_jobs_are_found_by_the_beginnings_of_their_ids_and_by_kind(
    served: ServedNode, kind: str
) -> None:
    job = await served.node.jobs.schedule(kind)
    expected = {"sort": "job", "id": job.job_id, "title": kind, "detail": "pending"}
    for text in (job.job_id, job.job_id[:8].upper(), job.ulid, f" {job.ulid[:22].lower()} "):
        assert (await found(served, text, "job"))[0] == expected
    assert await found(served, kind[3:].upper()) == [
        {"sort": "kind", "id": kind, "title": kind, "detail": "1 job"}
    ]
    run = await served.post("/v1/workflows", {"workflow": {"name": "w", "jobs": {"build": {"kind": kind}}}})
    ((item,),) = [run["items"]]
    assert (await found(served, item["job_id"]))[0]["title"] == "build"


async def test_agents_nodes_locks_threads_and_conflicts_are_found_by_their_names(served: ServedNode) -> None:
    node = served.node.identity.node_id
    await served.node.locks.acquire("file:src/Parser.py", agent="seeker", ttl=3_600)
    for thread in ("release-7", "release-8", "other"):
        message = {"to": "seeker", "sender": "lead", "payload": {}, "thread": thread}
        for _ in range(2):
            await served.ask("POST", "/v1/messages", message)
    await served.node.run_once()
    conflict_id = await conflict(served.node, "style guide")
    assert [each["id"] for each in await found(served, "eeke", "agent")] == ["seeker"]
    assert [each["id"] for each in await found(served, node[1:], "node")] == [node]
    assert await found(served, "src/parser") == [
        {"sort": "lock", "id": "file:src/Parser.py", "title": "file:src/Parser.py", "detail": "seeker"}
    ]
    assert [each["id"] for each in await found(served, "release")] == ["release-7", "release-8"]
    assert [each["id"] for each in await found(served, "release-8")] == ["release-8"]
    assert [each["id"] for each in await found(served, "STYLE guide")] == [conflict_id]
    assert [each["id"] for each in await found(served, conflict_id, "conflict")] == [conflict_id]


async def test_exact_names_come_first_and_the_list_is_bounded(served: ServedNode) -> None:
    names = [f"bounded.{n:02}" for n in range(30)]
    await served.post("/v1/jobs", {"manifests": [{"kind": name} for name in ["x.bounded.29", *names]]})
    await served.node.locks.acquire(names, agent="bounded", ttl=3_600)
    items = await found(served, "bounded")
    assert 12 <= len(items) <= MAX_FOUND
    assert [each["id"] for each in await found(served, "bounded.29", "kind")] == [
        "bounded.29",
        "x.bounded.29",
    ]


async def test_the_key_of_a_lock_is_found_as_a_whole_however_long_it_is(served: ServedNode) -> None:
    keys = [f"file:{'long/' * 190}{name}" for name in ("a", "b")]
    await served.node.locks.acquire(keys, agent="long", ttl=3_600)
    assert [each["id"] for each in await found(served, "long/long/", "lock")] == keys


async def test_a_hostile_text_is_only_a_text(served: ServedNode) -> None:
    await served.node.locks.acquire(f"note:{_HOSTILE}", agent="x", ttl=3_600)
    assert [each["id"] for each in await found(served, _HOSTILE)] == [f"note:{_HOSTILE}"]
    for text in ("100%x", "_%", "\u202e", "'", " "):
        assert (await served.ask("GET", "/v1/find", params={"q": text})).status_code == 200
    assert await found(served, "100_") == []
    for text in ("", "x" * 129, "\0"):
        assert_problem(await served.ask("GET", "/v1/find", params={"q": text}), 422, "bad_query")
    read_only = await served.ask("GET", "/v1/find", params={"q": _HOSTILE}, token=READ_TOKEN)
    assert len(read_only.json()["items"]) == 1
    assert_problem(await served.ask("GET", "/v1/find", params={"q": "x"}, token=None), 401, "token_missing")
