"""Drawings of the dependencies of jobs over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tests.support.jobs.staging import end
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from vox_mesh.model.jobs.graph.layout import MAX_NODES
from vox_mesh.model.jobs.records import JobState
from vox_mesh.store.script import new_key
from vox_mesh.views.graphs import job_graph

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOSTILE = "<img src=x onerror=alert(1)>\u202e"


async def scheduled(served: ServedNode, *manifests: dict[str, Any]) -> list[str]:
    """The ids of new jobs."""
    return [each["job_id"] for each in await served.post("/v1/jobs", {"manifests": manifests})]


def _check_edges(layout: dict[str, Any]) -> None:
    boxes = {each["id"]: each for each in layout["nodes"]}
    for edge in layout["edges"]:
        source, target = boxes[edge["from"]], boxes[edge["to"]]
        assert edge["points"][0] == [source["x"] + source["w"] // 2, source["y"] + source["h"]]
        assert edge["points"][-1] == [target["x"] + target["w"] // 2, target["y"]]


async def test_a_job_is_drawn_with_all_that_it_depends_on_and_leads_to(served: ServedNode, kind: str) -> None:
    first, second = new_key(), new_key()
    ids = await scheduled(
        served,
        {"kind": f"{kind}.a", "ulid": first},
        {"kind": f"{kind}.b", "ulid": second, "after": [first]},
        {"kind": f"{kind}.c", "after": [{"job": second, "when": "end"}, {"op": new_key()}]},
    )
    layout = await served.get(f"/v1/jobs/{ids[1]}/layout")
    by_id = {each["id"]: each for each in layout["nodes"]}
    assert [(by_id[each]["title"], by_id[each]["state"]) for each in ids] == [
        (f"{kind}.{letter}", "pending") for letter in "abc"
    ]
    assert by_id[ids[0]]["y"] < by_id[ids[1]]["y"] < by_id[ids[2]]["y"]
    assert sorted((each["from"], each["to"], each["awaited"]) for each in layout["edges"]) == sorted(
        [
            (ids[0], ids[1], "success"),
            (ids[1], ids[2], "end"),
            *((op, ids[2], "op") for op, node in by_id.items() if node["kind"] == "op"),
        ]
    )
    assert (len(layout["edges"]), layout["cut"]) == (3, 0)
    _check_edges(layout)
    read_only = await served.ask("GET", f"/v1/jobs/{ids[1]}/layout", token=READ_TOKEN)
    assert read_only.json() == layout


async def test_open_jobs_are_drawn_with_their_neighbours_and_without_isolated_ones(
    served: ServedNode, kind: str
) -> None:
    (done,) = await scheduled(served, {"kind": kind, "payload": 1})
    (waiting,) = await scheduled(served, {"kind": f"{kind}.b", "after": [done]})
    (alone,) = await scheduled(served, {"kind": kind, "payload": 2})
    await end(served.node, done, JobState.SUCCEEDED)
    layout = await served.get("/v1/jobs/layout")
    states = {each["id"]: each["state"] for each in layout["nodes"]}
    assert (states[done], states[waiting], alone in states) == ("succeeded", "pending", False)
    _check_edges(layout)


async def test_isolated_jobs_take_no_room_from_others(
    served: ServedNode, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = await scheduled(served, {"kind": kind, "payload": 1})
    (second,) = await scheduled(served, {"kind": f"{kind}.b", "after": [first]})
    await scheduled(served, *({"kind": kind, "payload": [n]} for n in range(3)))
    monkeypatch.setattr(job_graph, "MAX_JOBS", 2)
    graph = await served.get("/v1/jobs/graph")
    assert {each["job_id"] for each in graph["jobs"]} == {first, second}
    assert [(each["predecessor"], each["job_id"]) for each in graph["edges"]] == [(first, second)]


async def test_a_run_is_drawn_with_the_names_of_its_jobs(served: ServedNode, kind: str) -> None:
    jobs = {"fetch": {"kind": kind}, "build": {"kind": kind, "after": ["fetch"]}}
    run = await served.post("/v1/workflows", {"workflow": {"name": "release", "jobs": jobs}})
    layout = await served.get("/v1/jobs/layout", run=run["run_id"])
    assert [each["title"] for each in layout["nodes"]] == ["fetch", "build"]
    assert [(each["from"], each["to"]) for each in layout["edges"]] == [
        tuple(each["job_id"] for each in run["items"])
    ]
    unknown = await served.ask("GET", "/v1/jobs/layout", params={"run": f"{run['run_id'][:-6]}ZZZ000"})
    assert_problem(unknown, HTTPStatus.NOT_FOUND, "not_known")


async def test_hostile_titles_are_data(served: ServedNode, kind: str) -> None:
    label = {"workflow": {"name": _HOSTILE, "run": new_key(), "job": _HOSTILE * 1_000}}
    (job,) = await scheduled(served, {"kind": kind, "inputs": [label]})
    (node,) = (await served.get(f"/v1/jobs/{job}/layout"))["nodes"]
    assert node["title"] == (_HOSTILE * 1_000)[:200]


async def test_of_too_many_jobs_the_nearest_are_drawn(served: ServedNode, kind: str) -> None:
    (middle,) = await scheduled(served, {"kind": kind, "payload": "middle"})
    wide = [{"kind": kind, "payload": n, "after": [middle]} for n in range(300)]
    await scheduled(served, *wide)
    (far,) = await scheduled(served, wide[0])
    rest = MAX_NODES - 301 + 7
    for start_at in range(0, rest, 250):
        several = range(start_at, min(start_at + 250, rest))
        await scheduled(served, *({"kind": kind, "payload": [n], "after": [far]} for n in several))
    layout = await served.get(f"/v1/jobs/{middle}/layout")
    assert (len(layout["nodes"]), layout["cut"]) == (MAX_NODES, 7)
    near = {each["id"] for each in layout["nodes"]}
    assert {each["to"] for each in layout["edges"] if each["from"] == middle} <= near
    assert sum(each["from"] == middle for each in layout["edges"]) == 300
