"""Workflows: named jobs, parameters, the outputs of predecessors, and runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.job_scene import on_node
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.errors import BadValue, BadWorkflow
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.scheduling.workflow import parse_workflow, workflow_of
from vox_mesh.model.jobs.scheduling.workflow_run import new_run_id
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_RELEASE = """
name: release
params: { version: "1.0", depth: 2, target: }
jobs:
  test:
    after: [build]
    kind: work
    payload: { data: "${{ jobs.build.output }}", note: "v${{ params.version }}: ${{ jobs.build.output }}" }
  build:
    kind: work
    payload: { depth: "${{ params.depth }}", target: "${{ params.target }}" }
"""


async def test_each_run_has_jobs_of_its_own_and_passes_outputs_on(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return {"got": context.payload, "before": sorted(await context.results())}

    params = {"target": "${{ jobs.build.output }}", "depth": "3"}
    runs = [await node.workflows.run_text(_RELEASE, "release.yaml", params) for _ in range(2)]
    ids = {job.job_id for run in runs for job in run.jobs}
    assert (len(ids), {run.summary.state for run in runs}) == (4, {"running"})
    async with node.worker.running():
        tested = await node.jobs.result(runs[0].named()["test"], timeout=PATIENCE_S)
    built = {"before": [], "got": {"depth": 3, "target": "${{ jobs.build.output }}"}}  # data, and only data
    assert tested["got"]["data"] == built
    assert tested["got"]["note"].startswith('v1.0: {"before":[],')
    assert tested["before"] == ["build"]
    assert (await node.workflows.find(runs[0].summary.run_id)).summary.succeeded == 2
    await node.store.synced()
    listed = [(each.run_id, each.workflow, each.jobs) for each in await node.workflows.listed()]
    assert sorted(listed) == sorted((run.summary.run_id, "release", 2) for run in runs)


_SHIP = """
jobs:
  build: { kind: work, payload: built }
  ship: { after: [build], kind: work, payload: "${{ jobs.build.output }}" }
"""


@pytest.mark.parametrize("failing", ["ship", "build"])
async def test_a_retried_job_has_the_outputs_of_its_predecessors(node: MeshNode, failing: str) -> None:
    failures = 2

    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        nonlocal failures
        results = await context.results()
        if failures and failing == ("ship" if results else "build"):
            failures -= 1
            raise GiveUp("not yet")
        return [context.payload, results]

    run = (await node.workflows.run_text(_SHIP, "ship.yaml", {})).named()
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        build, ship = run["build"], await node.jobs.wait(run["ship"])
        for _ in range(2):  # the second time, a retry is retried
            if failing == "build":
                build = await node.jobs.wait(await node.jobs.retry(build))
            if failing == "ship" or build.state == "succeeded":
                ship = await node.jobs.wait(await node.jobs.retry(ship))
        built = ["built", {}]
        assert await node.jobs.result(ship) == [built, {"build": built}]


def test_an_output_is_one_argument_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
jobs:
  say: { kind: work }
  show:
    after: [say]
    command: [sh, -c, 'printf "%s|" "$@" "$SAID"', sh, "${{ jobs.say.output }}", "<${{ jobs.say.output }}>"]
    env: { SAID: "${{ jobs.say.output }}" }
"""
    said = '"; touch never; $(touch never) `touch never`\n--flag'

    async def work(node: MeshNode) -> Any:
        @node.worker.handles("work")
        async def handle(context: JobContext) -> str:
            return said

        run = await node.workflows.run_text(text, "w.yaml", {}, folder=str(tmp_path))
        async with node.worker.running():
            return await node.jobs.result(run.named()["show"], timeout=PATIENCE_S)

    assert on_node(work) == f"{said}|<{said}>|{said}|"
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("jobs: [a]", ["w.yaml:1: jobs: must be a map of names to jobs"]),
        (
            "jobs:\n  a: { kind: work }\nstages: 1",
            ["w.yaml:3: stages: is not known; allowed: name, params, jobs"],
        ),
        (
            "jobs:\n  a:\n    kind: work\n    after: [b]",
            ["w.yaml:4: jobs.a.after[0]: there is no job 'b' in"],
        ),
        (
            "jobs:\n  a: { kind: work, after: [b] }\n  b: { kind: work, after: [a] }",
            ["w.yaml:2: jobs.a.after: these wait for each other: a -> b -> a"],
        ),
        ("jobs:\n  a:\n    kind: Work", ["w.yaml:3: jobs.a.kind: "]),
        ("jobs:\n  a:\n    kind: work\n    ulid: x", ["w.yaml:4: jobs.a.ulid: is set by the workflow"]),
        (
            "jobs:\n  a:\n    kind: work\n    payload: '${{ params.x }}'",
            ["w.yaml:4: jobs.a.payload: there is no param"],
        ),
        (
            "jobs:\n  a:\n    kind: work\n    payload: '${{ secrets.x }}'",
            ["w.yaml:4: jobs.a.payload: 'secrets.x' is not"],
        ),
        (
            "jobs:\n  a: { kind: work }\n  b:\n    kind: work\n    payload: '${{ jobs.a.output }}'",
            ["w.yaml:5: jobs.b.payload: the output of a is used, so a must be in after"],
        ),
        (
            "jobs:\n  a: { kind: work }\n  b:\n    after: [a]\n    command: [sh, -c]\n    args:\n"
            "    - echo ${{ jobs.a.output }}",
            ["w.yaml:7: jobs.b.args[0]: a reference is not put into code"],
        ),
        (
            "jobs:\n  a: { kind: work }\n  b:\n    after: [a]\n    command: ['${{ jobs.a.output }}']",
            ["w.yaml:5: jobs.b.command[0]: an output can be in args, env and payload"],
        ),
        ("jobs: {a: {kind: work}}\n---\njobs: {}", ["w.yaml:3: there is more than one workflow in it"]),
    ],
)
def test_what_is_wrong_with_a_workflow_is_reported_by_line(text: str, faults: list[str]) -> None:
    with pytest.raises(BadWorkflow) as bad:
        parse_workflow(text, "w.yaml", {}, new_run_id(new_key()), None)
    assert [found.startswith(fault) for found, fault in zip(bad.value.faults, faults, strict=True)] == [
        True
    ], bad.value


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({}, "'target' has no default"),
        ({"x": "1"}, "no parameter 'x'"),
        ({"target": "", "depth": "deep"}, "a number"),
    ],
)
def test_parameters_must_fit(params: dict[str, str], fault: str) -> None:
    with pytest.raises(BadValue, match=fault):
        parse_workflow(_RELEASE, "w.yaml", params, new_run_id(new_key()), None)


def test_runs_of_one_process_have_ulids_apart() -> None:
    assert len({new_run_id(new_key()) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize("text", ["${{" + " " * 200_000 + "x", "${{" * 50_000, "${{ x\n}}"])
def test_a_text_that_is_almost_a_reference_is_read_at_once_and_stays_as_it_is(text: str) -> None:
    workflow = {"jobs": {"only": {"kind": "work", "payload": {"note": text}}}}
    (job,) = workflow_of(workflow, {}, new_run_id(new_key())).manifests
    assert job.payload == {"note": text}
