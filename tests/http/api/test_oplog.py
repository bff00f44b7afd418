"""The op log over HTTP."""

from __future__ import annotations

import asyncio
import tracemalloc
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.support.messages.relaying import TOKEN, Wire, assert_problem, until
from tests.support.nodes.printing import commands_of, printed
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.exports import AWKWARD, exported, fill
from tools.homes import FILE
from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.oplog.export import verify_export
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.store.script import Script, Statement, new_key
from vox_mesh.views import op_causes

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EXPORT = "/v1/oplog/export"


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def log(served: ServedNode) -> None:
    """Entries of all sorts."""
    await fill(served.node)


async def test_entries_are_reported_as_the_command_tells_them(served: ServedNode) -> None:
    entries = await served.all("/v1/oplog", limit=3)
    assert [each["id"] for each in entries] == sorted({each["id"] for each in entries})
    assert entries == await printed(served, "oplog", "tail", "--limit", "1000")
    assert await served.all("/v1/oplog", after=entries[2]["id"]) == entries[3:]
    notes = [each for each in entries if each["kind"] == "note"]
    assert await served.all("/v1/oplog", kind="note", node="ann", limit=2) == notes
    assert notes[3]["payload"]["text"] == AWKWARD["text"]
    assert await served.all("/v1/oplog", node="unknown") == []
    assert await served.get(f"/v1/oplog/{notes[0]['op_id']}") == notes[0]
    assert_problem(await served.ask("GET", f"/v1/oplog/{new_key()}"), HTTPStatus.NOT_FOUND, "not_known")


async def test_the_log_names_the_agent_of_the_request_and_is_filtered_by_it(served: ServedNode) -> None:
    work = {"manifests": [{"kind": "notes.tidy"}]}
    answer = await served.ask("POST", "/v1/jobs", work, headers={"Vox-Agent": "eve"})
    job = answer.json()[0]["job_id"]
    (entry,) = await served.all("/v1/oplog", agent="eve")
    assert (entry["kind"], entry["agent"], entry["grant"]) == ("ScheduleJob", "eve", None)
    assert await served.all("/v1/oplog", job=job) == [entry]
    assert await printed(served, "oplog", "tail", "--agent", "eve", "--job", job) == [entry]
    refused = await served.ask("POST", "/v1/jobs", work, headers={"Vox-Agent": "role:qa"})
    assert_problem(refused, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")


async def test_pages_go_on_with_what_came_meanwhile(served: ServedNode) -> None:
    first = await served.get("/v1/oplog", kind="note", limit=2)
    new = await served.node.oplog.append("note", {"n": "new"})
    rest = await served.all("/v1/oplog", kind="note", cursor=first["next"])
    seen = [each["op_id"] for each in (*first["items"], *rest)]
    assert (len(set(seen)), seen[-1]) == (len(seen), new.key)


async def test_the_log_is_read_from_its_end_back_to_an_entry(served: ServedNode) -> None:
    entries = await served.all("/v1/oplog")
    assert await served.all("/v1/oplog", order="newest", limit=3) == entries[::-1]
    assert await served.all("/v1/oplog", order="newest", after=entries[2]["id"]) == entries[:2:-1]
    notes = [each for each in entries if each["kind"] == "note"]
    assert await served.all("/v1/oplog", order="newest", kind="note", node="ann", limit=2) == notes[::-1]
    first = await served.get("/v1/oplog", order="newest", limit=1)
    await served.post("/v1/jobs", {"manifests": [{"kind": "notes.meanwhile"}]})
    rest = await served.all("/v1/oplog", order="newest", cursor=first["next"])
    assert [*first["items"], *rest] == entries[::-1]
    refused = await served.ask("GET", "/v1/oplog", params={"order": "random"})
    assert_problem(refused, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_query")


async def test_an_op_is_shown_with_its_causes_and_theirs(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.post("/v1/jobs", {"manifests": [{"kind": "notes.caused"}]})
    agent = {"Vox-Agent": "adam"}
    (job,) = (await served.ask("POST", "/v1/jobs/take", {"kinds": ["notes.caused"]}, headers=agent)).json()
    report = {"claim_token": job["claim_token"], "outcome": "succeeded"}
    await served.ask("POST", f"/v1/jobs/{job['job_id']}/report", report, headers=agent)
    last_op = (await served.get(f"/v1/jobs/{job['job_id']}"))["last_op"]
    causes = await served.get(f"/v1/oplog/{last_op}/causes")
    entries = {each["op_id"]: each for each in await served.all("/v1/oplog", job=job["job_id"])}
    assert [each["op_id"] for each in causes["ops"]] == [*entries][::-1]
    assert causes["ops"][0]["op_id"] == last_op
    assert not causes["is_cut"]
    for op in causes["ops"]:
        entry = entries[op["op_id"]]
        shown = {name: entry[name] for name in op.keys() & entry.keys()}
        assert {**shown, "at_ms": int(entry["hlc"][:13])} == op
    monkeypatch.setattr(op_causes, "MAX_OPS", 2)
    nearest = await served.get(f"/v1/oplog/{last_op}/causes")
    assert nearest == {"ops": causes["ops"][:2], "is_cut": True}
    unknown = await served.ask("GET", f"/v1/oplog/{new_key()}/causes")
    assert_problem(unknown, HTTPStatus.NOT_FOUND, "not_known")


async def test_a_changed_entry_is_not_authentic(tmp_path: Path) -> None:
    async with serving_api(SharedMesh(FILE, tmp_path, None, new_key())) as served:
        (job,) = await served.post("/v1/jobs", {"manifests": [{"kind": "notes.forged"}]})
        op_id = (await served.get(f"/v1/jobs/{job['job_id']}"))["last_op"]
        path = f"/v1/oplog/{op_id}/authenticity"
        sound = {"op_id": op_id, "is_authentic": True, "has_changed_verdict": False}
        assert await served.get(path) == sound
        change = "UPDATE agent_oplog SET payload = replace(payload, 'forged', 'forgot') WHERE op_id = ?"
        await served.node.store.write(Script(Statement(change, (op_id,))))
        assert await served.get(path) == {**sound, "is_authentic": False}


async def test_how_ops_stand_is_reported(served: ServedNode) -> None:
    (waiting,) = await served.all("/v1/oplog/waiting")
    assert [waiting] == await printed(served, "oplog", "waiting")
    assert await served.get(f"/v1/oplog/{waiting['op_id']}/standing") == waiting
    by_kind = {each["kind"]: each["op_id"] for each in await served.all("/v1/oplog")}
    refused = await served.get(f"/v1/oplog/{by_kind['derived']}/standing")
    assert (refused["state"], refused["reason"]) == ("refused", "not_the_coordinator")
    assert (await served.get(f"/v1/oplog/{by_kind['Seal']}/standing"))["state"] == "applied"
    assert_problem(await served.ask("GET", f"/v1/oplog/{new_key()}/standing"), 404, "not_known")


async def test_chains_are_anchored_and_verified(served: ServedNode) -> None:
    anchored = await served.post("/v1/oplog/anchor")
    assert (anchored["kind"], anchored["accepted"]) == ("Anchor", True)
    chains = await served.get("/v1/oplog/verify")
    assert chains == await printed(served, "oplog", "verify")
    assert [(each["node_id"], each["problem"]) for each in chains] == [("ann", None)]
    assert await served.get("/v1/oplog/verify", node="ann") == chains
    absent = await served.ask("GET", "/v1/oplog/verify", params={"node": "unknown"})
    assert_problem(absent, HTTPStatus.NOT_FOUND, "not_known")


async def test_the_export_is_what_the_command_writes_and_proves_itself(
    served: ServedNode, tmp_path: Path
) -> None:
    answer = await served.ask("GET", _EXPORT, token=TOKEN)
    assert answer.headers["Content-Type"] == "application/jsonl"
    assert "Content-Length" not in answer.headers
    file = tmp_path / "log.jsonl"
    file.write_bytes(answer.content)
    written = (await exported(served.node, tmp_path / "other.jsonl")).path
    assert written.read_bytes() == answer.content
    ended = await asyncio.to_thread(
        commands_of(served), "oplog", "verify", "--from-file", str(file), "--json"
    )
    assert (ended.code, ended.document) == (0, await served.get("/v1/oplog/verify"))


async def test_an_export_of_any_length_takes_little_memory(served: ServedNode, tmp_path: Path) -> None:
    node = served.node
    text = "x" * 200_000
    for _ in range(80):
        await node.oplog.append("note", {"text": text})
    pages = node.oplog._pages
    pages._page_limit, most = 2, pages._page_limit
    tracemalloc.start()
    try:
        sent = 0
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with served.client.stream("GET", _EXPORT, headers=headers) as answer:
            with (tmp_path / "log.jsonl").open("wb") as file:
                async for part in answer.aiter_bytes():
                    sent += file.write(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pages._page_limit = most
    assert sent > 16_000_000 > 2 * peak
    assert [chain.problem for chain in verify_export(tmp_path / "log.jsonl").chains] == [None]


async def test_an_export_that_the_database_breaks_off_is_not_taken_for_whole(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def cut_off(self: OpLog, **_: Any) -> Any:
        async for page in entries(self):
            yield page[:1]
            raise DatabaseUnavailable("it went away")

    entries = OpLog.entries
    monkeypatch.setattr(OpLog, "entries", cut_off)
    async with Wire(served.client.base_url.port or 0) as wire:
        await wire.send(
            f"GET {_EXPORT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        answer = await wire.to_the_end()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert not answer.endswith(b"0\r\n\r\n")
    assert b'{"entries":' not in answer
    await until(lambda: "answer aborted" in caplog.text)
    assert "Traceback" not in caplog.text


async def test_an_export_that_can_not_begin_is_a_problem(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: OpLog) -> Any:
        raise DatabaseUnavailable("it is away")

    monkeypatch.setattr(OpLog, "moment", away)
    answer = await served.ask("GET", _EXPORT)
    assert_problem(answer, HTTPStatus.SERVICE_UNAVAILABLE, DatabaseUnavailable.code)


async def test_every_line_of_an_export_is_a_document(served: ServedNode) -> None:
    lines = (await served.ask("GET", _EXPORT)).content.splitlines()
    header, *entries, end = [orjson.loads(line) for line in lines]
    assert header["scope_id"] == served.shared_mesh.scope_id
    assert end == {"entries": len(entries)}
