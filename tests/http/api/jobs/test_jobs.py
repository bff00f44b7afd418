"""Jobs over HTTP: scheduled, listed, looked at, waited for."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended
from tests.support.jobs.staging import end, start
from tests.support.messages.messaging import write
from tests.support.messages.relaying import PATIENCE_S, assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import JobContext
from vox_mesh.model.base.canonical import content_id
from vox_mesh.model.jobs.bundle import check_bundle
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def scheduled(served: ServedNode, *manifests: dict[str, Any], new: bool = False) -> list[Any]:
    """What came of these."""
    document: list[Any] = await served.post("/v1/jobs", {"manifests": manifests, "new": new})
    return document


async def test_the_same_manifest_is_the_same_job_unless_it_is_to_be_new(
    served: ServedNode, kind: str
) -> None:
    manifest = {"kind": kind, "payload": {"n": 1}, "priority": 3, "run_at": "2030-01-31T08:00:00Z"}
    (first,) = await scheduled(served, manifest)
    assert first["job_id"] == content_id({"kind": kind, "payload": {"n": 1}})
    assert first["is_new"]
    (again,) = await scheduled(served, manifest)
    assert again == {**first, "is_new": False}
    (other,) = await scheduled(served, manifest, new=True)
    assert other["job_id"] != first["job_id"]
    shown = await served.get(f"/v1/jobs/{first['job_id']}")
    assert (shown["priority"], shown["not_before_ms"]) == (3, 1_896_076_800_000)


async def test_several_are_scheduled_together_and_wait_for_each_other(served: ServedNode, kind: str) -> None:
    first, second = new_key(), new_key()
    document = await scheduled(
        served,
        {"kind": f"{kind}.b", "ulid": second, "after": [{"job": first, "when": "end"}]},
        {"kind": f"{kind}.a", "ulid": first},
    )
    assert [each["ulid"] for each in document] == [first, second]
    before, after = (each["job_id"] for each in document)
    shown = await served.get(f"/v1/jobs/{second.lower()}")
    assert (shown["job_id"], shown["waits"]) == (after, 1)
    awaited = {"job_id": before, "awaited": "end", "state": "pending", "kind": f"{kind}.a"}
    assert shown["predecessors"] == [awaited]
    assert (await served.get(f"/v1/jobs/{before[:12]}"))["successors"] == [after]
    graph = await served.get(f"/v1/jobs/{before}/graph")
    assert graph["edges"] == [{"job_id": after, "predecessor": before, "awaited": "end"}]
    assert {each["job_id"] for each in graph["jobs"]} == {before, after}
    whole = await served.get("/v1/jobs/graph")
    assert graph["edges"][0] in whole["edges"]
    assert not whole["is_cut"]


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ({}, "manifests[1]: there must be a command, or a kind that a handler knows"),
        ({"kind": "Bad Kind"}, "manifests[1].kind: must not be 'Bad Kind'"),
        ({"kind": "a", "payload": {"x": ["\0"]}}, "manifests[1].payload.x[0]: has a NUL character"),
        ({"kind": "a", "payload": 2**60}, "manifests[1].payload: the value has no canonical JSON"),
        ({"kind": "a", "priority": 2**62}, "manifests[1].priority: must not be a number"),
        ({"kind": "a", "timeout": "9" * 400}, "manifests[1].timeout: "),
        ({"kind": "a", "lease": None}, "manifests[1].lease: must not be empty or null"),
        ({"kind": "a", "after": [{"job": "abcdef", "when": 1}]}, "manifests[1].after[0].when: 1 is neither"),
        ({"kind": "a", "cls": 1}, "manifests[1].cls: is no field of a manifest"),
        ({"kind": "a", "retry_of": "0" * 64}, "manifests[1].retry_of: is not for manifests"),
        ({"command": ["true"]}, "manifests[1].timeout: is missing"),
        ([], "manifests[1]: a manifest is a map, not an array"),
    ],
)
async def test_what_is_wrong_with_a_manifest_is_reported_by_its_place_and_none_is_scheduled(
    served: ServedNode, kind: str, manifest: Any, fault: str
) -> None:
    answer = await served.ask("POST", "/v1/jobs", {"manifests": [{"kind": kind}, manifest]})
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_manifest")
    assert answer.json()["faults"][0].startswith(fault), answer.text
    assert await served.all("/v1/jobs", kind=kind) == []


async def test_a_nested_value_of_any_depth_is_refused_or_kept(served: ServedNode, kind: str) -> None:
    for depth, status in ((60, 200), (65, 422), (70, 400), (1_000, 400)):
        nested = b"[" * depth + b"]" * depth
        body = b'{"manifests": [{"kind": "%b", "payload": %b}]}' % (kind.encode(), nested)
        answer = await served.ask(
            "POST", "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, answer.text


async def test_a_job_that_is_not_there_is_not_found(served: ServedNode) -> None:
    for path in ("", "/wait", "/logs", "/graph", "/bundle", "/verify"):
        answer = await served.ask("GET", f"/v1/jobs/{'e' * 64}{path}")
        assert_problem(answer, HTTPStatus.NOT_FOUND, "not_known")
        answer = await served.ask("GET", f"/v1/jobs/nonsense{path}")
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_path")


async def test_all_pages_together_have_every_job_once(served: ServedNode, kind: str) -> None:
    manifests = [{"kind": f"{kind}.{'ab'[n % 2]}", "payload": n} for n in range(7)]
    document = [each["job_id"] for each in await scheduled(served, *manifests)]
    listed = await served.all("/v1/jobs", kind=f"{kind}.*", limit=3)
    assert [each["job_id"] for each in listed] == document[::-1]
    assert [each["manifest"] for each in listed] == manifests[::-1]
    half = await served.all("/v1/jobs", kind=f"{kind}.a", state="pending", limit=2)
    assert [each["job_id"] for each in half] == document[::2][::-1]
    whole = await served.get("/v1/jobs", kind=f"{kind}.*", limit=7)
    assert len(whole["items"]) == 7
    after = await served.ask("GET", "/v1/jobs", params={"kind": f"{kind}.*", "limit": 3})
    assert after.headers["Link"].endswith('; rel="next"')
    assert await served.all("/v1/jobs", kind=kind, state="running") == []
    await start(served.node, document[0])
    mine = await served.all("/v1/jobs", node=served.node.identity.node_id, kind=f"{kind}.*")
    assert [each["job_id"] for each in mine] == [document[0]]
    counts = await served.all("/v1/jobs/counts", kind=f"{kind}.*", limit=1)
    assert [(each["kind"], each["pending"], each["running"]) for each in counts] == [
        (f"{kind}.a", 3, 1),
        (f"{kind}.b", 3, 0),
    ]
    ready = await served.get("/v1/jobs/ready", kind=f"{kind}.*", limit=5)
    assert [each["job_id"] for each in ready] == document[1:6]


async def test_jobs_of_which_few_fit_into_an_answer_are_all_listed(
    tmp_path: Path, shared_server: Server, kind: str
) -> None:
    async with serving_api(SharedMesh(MESH, tmp_path, shared_server, new_key())) as served:
        jobs = []
        for batch in range(6):
            payloads = [f"{batch} {number} {'x' * 240_000}" for number in range(8)]
            manifests = [Manifest.of(kind=kind, payload=each) for each in payloads]
            jobs += [each.job_id for each in await served.node.jobs.schedule_all(manifests)]
        first = await served.get("/v1/jobs")
        assert len(first["items"]) < len(jobs)
        assert [each["job_id"] for each in await served.all("/v1/jobs")] == jobs[::-1]


@pytest.mark.parametrize("query", [{"state": "done"}, {"limit": 0}, {"limit": 501}, {"cursor": "nonsense"}])
async def test_a_page_of_nothing_that_there_is_is_refused(served: ServedNode, query: dict[str, Any]) -> None:
    answer = await served.ask("GET", "/v1/jobs", params=query)
    code = "bad_cursor" if "cursor" in query else "bad_query"
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, code)


async def test_who_has_an_answer_already_is_notified_that_it_is_still_the_same(
    served: ServedNode, kind: str
) -> None:
    (document,) = await scheduled(served, {"kind": kind})
    path = f"/v1/jobs/{document['job_id']}"
    tag = (await served.ask("GET", path)).headers["ETag"]
    assert (await served.ask("GET", path, headers={"If-None-Match": tag})).status_code == 304
    await served.post(f"{path}/abort", {})
    assert (await served.ask("GET", path, headers={"If-None-Match": tag})).status_code == 200


# --- while it runs -------------------------------------------------------------------------------


async def test_who_waits_is_notified_when_the_job_has_ended_or_the_time_is_over(
    served: ServedNode, kind: str
) -> None:
    (document,) = await scheduled(served, {"kind": kind})
    path = f"/v1/jobs/{document['job_id'][:20]}/wait"
    assert (await served.get(path, timeout="1ms"))["state"] == "pending"
    waiting = asyncio.create_task(served.get(path, timeout=60))
    await end(served.node, document["job_id"], JobState.SUCCEEDED)
    assert (await waiting)["state"] == "succeeded"
    assert (await served.get(path))["state"] == "succeeded"
    assert_problem(await served.ask("GET", path, params={"timeout": "61s"}), 422, "bad_query")


async def test_what_a_job_prints_is_read_piece_by_piece_until_it_has_ended(
    served: ServedNode, kind: str
) -> None:
    (document,) = await scheduled(served, {"kind": kind})
    path = f"/v1/jobs/{document['job_id']}/logs"
    empty = await served.get(path)
    assert empty["items"] == []
    desk = ControlledHandler(served.node, kind)
    async with served.node.worker.running():
        context = await desk.next()
        waiting = asyncio.create_task(served.get(path, cursor=empty["next"], wait="59s"))
        context.log("one\n")
        first = await waiting
        assert [each["text"] for each in first["items"]] == ["one\n"]
        context.log("two\n")
        more = await served.get(path, cursor=first["next"], wait="59s")
        assert [each["text"] for each in more["items"]] == ["two\n"]
        desk.may_end.set()
        await served.node.jobs.wait(document["job_id"])
    texts = [each["text"] for each in await served.all(path, limit=1)]
    assert texts == ["one\n", "two\n"]
    last = await served.get(path, cursor=more["next"])
    assert last == {"items": [], "next": None}
    tail = await served.get(path, tail=1)
    assert ([each["text"] for each in tail["items"]], tail["next"]) == (["two\n"], None)


# --- what it can prove ---------------------------------------------------------------------------


async def test_a_bundle_is_good_to_the_byte_and_there_is_none_without_a_proof(
    served: ServedNode, kind: str
) -> None:
    done, pending = await scheduled(
        served, {"command": ["echo", kind], "timeout": 60}, {"kind": kind, "payload": None}
    )
    async with served.node.worker.running():
        await served.node.jobs.wait(done["job_id"])
    path = f"/v1/jobs/{done['job_id']}"
    proof = await served.get(f"{path}/verify")
    assert (proof["valid"], proof["faults"], proof["trailers"]["Job-Id"]) == (
        *(True, []),
        f"blake3:{done['job_id']}",
    )
    bundle = await served.ask("GET", f"{path}/bundle")
    assert check_bundle(bundle.content, worker_key=served.node.identity.key.public)[0] == []
    path = f"/v1/jobs/{pending['job_id']}"
    proof = await served.get(f"{path}/verify")
    assert (proof["valid"], proof["trailers"]) == (False, None)
    refused = await served.ask("GET", f"{path}/bundle")
    assert_problem(refused, HTTPStatus.CONFLICT, "no_proof")
    assert refused.json()["faults"] == proof["faults"]


async def test_the_roster_is_compared_with_the_log_and_mended(served: ServedNode, kind: str) -> None:
    (document,) = await scheduled(served, {"kind": kind})
    job_id = document["job_id"]
    assert await served.get("/v1/jobs/rebuild") == {"differences": [], "findings": [], "repaired": False}
    of_job = "scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
    await write(served.node, f"UPDATE jobs SET priority = 3 WHERE {of_job}", job_id)
    difference = {"job_id": job_id, "column": "priority", "in_roster": 3, "by_log": 1}
    assert (await served.get("/v1/jobs/rebuild"))["differences"] == [difference]
    mended = await served.post("/v1/jobs/rebuild")
    assert mended == {"differences": [difference], "findings": [], "repaired": True}
    assert (await served.get(f"/v1/jobs/{job_id}"))["priority"] == 1


async def test_a_manifest_as_the_document_describes_it_is_one(served: ServedNode) -> None:
    described = (await served.get("/v1/openapi.json"))["components"]["schemas"]["Manifest"]
    assert {*described["properties"]} == {*Manifest.model_fields} - {"retry_of"}
    assert b'"null"' not in orjson.dumps(described)


async def test_results_and_artifacts_are_read_with_the_full_token(served: ServedNode) -> None:
    node = served.node

    @node.worker.handles("test.result")
    async def handle(context: JobContext) -> dict[str, int]:
        await context.keep("page.html", b"<script>" * 4_000, "text/html")
        return {"pages": 1}

    async with node.worker.running():
        job = await node.jobs.schedule("test.result")
        assert await node.jobs.result(job, timeout=PATIENCE_S) == {"pages": 1}
    path = f"/v1/jobs/{job.job_id}"
    assert (await served.get(f"{path}/result"))["result"] == {"pages": 1}
    answer = await served.ask("GET", f"{path}/artifacts/page.html")
    assert (answer.status_code, answer.content) == (HTTPStatus.OK, b"<script>" * 4_000)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == "attachment"
    for more in ("result", "artifacts/page.html"):
        refused = await served.ask("GET", f"{path}/{more}", token=READ_TOKEN)
        assert refused.status_code == HTTPStatus.FORBIDDEN
    assert (await served.ask("GET", f"{path}/artifacts/none")).status_code == HTTPStatus.NOT_FOUND


async def test_a_workflow_is_run_shown_and_listed(served: ServedNode, kind: str) -> None:
    jobs = {"one": {"kind": kind}, "two": {"kind": kind, "after": ["one"], "payload": "${{ params.n }}"}}
    body = {"workflow": {"name": "pair", "params": {"n": 1}, "jobs": jobs}, "params": {"n": "2"}}
    run = await served.post("/v1/workflows", body)
    assert (run["workflow"], run["state"], run["jobs"]) == ("pair", "running", 2)
    assert await served.get(f"/v1/workflows/{run['run_id']}") == run
    await served.node.store.synced()
    assert run["run_id"] in [each["run_id"] for each in await served.all("/v1/workflows")]
    two = await served.get(f"/v1/jobs/{run['items'][1]['job_id']}")
    assert (two["manifest"]["payload"], two["waits"]) == (2, 1)
    bad = await served.ask("POST", "/v1/workflows", {"workflow": {"jobs": {"a": {"kind": "A"}}}})
    assert_problem(bad, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_workflow")


async def test_the_steps_of_a_job_come_in_pages(served: ServedNode, kind: str) -> None:
    @served.node.worker.handles(kind)
    async def handle(context: JobContext) -> None:
        for number in range(3):
            await context.step(f"part {number}", int, number)

    job = await served.node.jobs.schedule(kind)
    async with served.node.worker.running():
        await ended(served.node, job)
    path = f"/v1/jobs/{job.job_id}/steps"
    first = await served.get(path, limit=2)
    assert [(each["name"], each["value"]) for each in first["items"]] == [
        ("part 0", {"result": 0}),
        ("part 1", {"result": 1}),
    ]
    rest = await served.get(path, limit=2, cursor=first["next"])
    assert ([each["name"] for each in rest["items"]], rest["next"]) == (["part 2"], None)
