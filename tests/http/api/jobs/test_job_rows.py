"""Tables of jobs over HTTP: rows, filters, exact counts, and actions on all that a filter selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.staging import brought
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.model.jobs.records import ENDS, JobState
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def in_all_states(served: ServedNode, kind: str) -> dict[str, str]:
    """A job in each state, by state."""
    jobs = [await brought(served.node, state, kind=kind) for state in JobState]
    return {job.state: job.job_id for job in jobs if job is not None}


async def ids(served: ServedNode, path: str = "/v1/jobs/rows", **query: Any) -> list[str]:
    """The ids of the jobs of all pages."""
    return [each["job_id"] for each in await served.all(path, **query)]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/rows"])
async def test_several_states_are_listed_together_newest_first(
    served: ServedNode, kind: str, path: str
) -> None:
    jobs = [await in_all_states(served, kind) for _ in range(2)]
    for states in (["failed", "aborted"], ["running", "succeeded", "pending"], ["claimed"], [*JobState]):
        wanted = {each[state] for each in jobs for state in states}
        listed = await ids(served, path, kind=kind, state=",".join(states), limit=2)
        assert len(listed) == len(wanted)
        assert {*listed} == wanted
        newest_first = [each for each in await ids(served, path, kind=kind) if each in wanted]
        assert listed == newest_first
        total = await served.get("/v1/jobs/count", kind=kind, state=",".join(states))
        assert total == {"jobs": len(wanted), "is_exact": True}
    assert_problem(await served.ask("GET", path, params={"state": "failed,none"}), 422, "bad_query")


async def test_a_row_has_what_a_table_shows_and_no_manifest(served: ServedNode, kind: str) -> None:
    jobs = {"fetch": {"kind": kind}, "build": {"kind": f"{kind}.b", "after": ["fetch"]}}
    run = await served.post("/v1/workflows", {"workflow": {"name": "release", "jobs": jobs}})
    (taken,) = (
        await served.ask("POST", "/v1/jobs/take", {"kinds": [kind]}, headers={"Vox-Agent": "coder"})
    ).json()
    path = f"/v1/jobs/{taken['job_id']}/progress"
    note = {"claim_token": taken["claim_token"], "fraction": 0.5, "message": "<b>half</b>"}
    await served.ask("POST", path, note, headers={"Vox-Agent": "coder"})
    second, first = await served.all("/v1/jobs/rows", run=run["run_id"])
    whole = await served.get(f"/v1/jobs/{taken['job_id']}")
    own = {"title": "fetch", "agent": "coder", "progress": 0.5, "message": "<b>half</b>"}
    assert own.items() <= first.items()
    assert {name: first[name] for name in first.keys() & whole.keys() - own.keys()} == {
        name: whole[name] for name in first.keys() & whole.keys() - own.keys()
    }
    assert "manifest" not in first
    assert (second["title"], second["agent"], second["waits"]) == ("build", None, 1)
    assert await ids(served, agent="coder", kind=f"{kind}*") == [first["job_id"]]
    assert await ids(served, "/v1/jobs", agent="coder", run=run["run_id"]) == [first["job_id"]]
    assert await ids(served, agent="coder", kind=kind, state="pending,failed") == []
    assert await ids(served, agent="another") == []
    node = served.node.identity.node_id
    for query, jobs_found in (
        ({"run": run["run_id"]}, 2),
        ({"run": run["run_id"], "state": "pending"}, 1),
        ({"agent": "coder", "kind": kind}, 1),
        ({"node": node, "kind": kind}, 1),
        ({"node": "elsewhere", "kind": kind}, 0),
    ):
        assert await served.get("/v1/jobs/count", **query) == {"jobs": jobs_found, "is_exact": True}


async def test_actions_take_the_same_filters_as_lists(served: ServedNode, kind: str) -> None:
    jobs = await in_all_states(served, kind)
    for body in ({"kind": kind, "state": "pending,failed"}, {"kind": kind, "state": "done"}):
        assert_problem(await served.ask("POST", "/v1/jobs/abort", body), 422, "bad_body")
    retried = await served.post("/v1/jobs/retry", {"kind": kind, "state": "failed,aborted"})
    assert {each["retry_of"] for each in retried["items"]} == {jobs["failed"], jobs["aborted"]}
    run = await served.post(
        "/v1/workflows", {"workflow": {"name": "release", "jobs": {"a": {"kind": kind}, "b": {"kind": kind}}}}
    )
    aborted = await served.post("/v1/jobs/abort", {"run": run["run_id"], "state": "pending,running"})
    assert {each["job_id"] for each in aborted["items"]} == {each["job_id"] for each in run["items"]}
    still_open = [state for state in JobState if state not in ENDS]
    assert (await served.get("/v1/jobs/count", kind=kind, state=",".join(still_open)))["jobs"] == 5


async def test_all_of_600_jobs_are_aborted_and_retried_by_a_client_that_follows_next(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key())
    async with serving_api(shared_mesh, rate_limit=100_000) as served:
        for start in range(0, 600, 300):
            manifests = [{"kind": "test.many", "payload": n} for n in range(start, start + 300)]
            await served.post("/v1/jobs", {"manifests": manifests})
        await served.post("/v1/jobs", {"manifests": [{"kind": "test.other"}]})

        async def to_the_end(path: str, body: dict[str, Any]) -> list[Any]:
            items: list[Any] = []
            cursor = None
            while True:
                page = await served.post(path, {**body, "cursor": cursor})
                items += page["items"]
                if (cursor := page["next"]) is None:
                    return items

        aborted = await to_the_end("/v1/jobs/abort", {"kind": "test.many", "reason": "all"})
        assert (len(aborted), len({each["job_id"] for each in aborted})) == (600, 600)
        assert (await served.get("/v1/jobs/count", state="aborted"))["jobs"] == 600
        retried = await to_the_end("/v1/jobs/retry", {"state": "aborted", "limit": 250})
        assert {each["retry_of"] for each in retried} == {each["job_id"] for each in aborted}
        assert (await served.get("/v1/jobs/count", state="pending"))["jobs"] == 601
        again = await to_the_end("/v1/jobs/retry", {"state": "aborted", "limit": 250})
        assert not any(each["is_new"] for each in again)
        assert (await served.get("/v1/jobs/count", state="pending"))["jobs"] == 601
