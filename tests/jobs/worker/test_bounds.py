"""Scores of jobs: the worker keeps them, whatever the work does."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.support.jobs.bounded_jobs import (
    FOR_EVER,
    ONCE,
    SCORE,
    command,
    ends_of,
    node,
    settings,
    work,
)
from tests.support.jobs.job_desks import ControlledHandler, ended
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.errors import BadManifest
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest, parse_manifests
from vox_mesh.node import MeshNode

__all__ = ["node", "settings"]


async def test_a_call_schedules_a_job_with_a_score_and_a_budget(node: MeshNode) -> None:
    scheduled = await node.jobs.schedule("work", score=SCORE, budget={"max_bu": 3})
    core = (await node.jobs.find(scheduled)).core
    assert (core["score"], core["budget"]) == (SCORE, {"max_bu": 3})
    with pytest.raises(BadManifest, match="bar_len"):
        await node.jobs.schedule("work", score=SCORE | {"bar_len": 5})


# --- manifests -----------------------------------------------------------------------------------


def test_a_score_and_a_budget_are_part_of_what_a_job_is() -> None:
    plain = Manifest.of(kind="work")
    scored, charged = Manifest.of(kind="work", score=SCORE), Manifest.of(kind="work", budget={"max_bu": 3})
    assert len({each.content_id for each in (plain, scored, charged)}) == 3
    assert plain.core() == {"kind": "work"}
    assert (scored.core()["score"], charged.core()["budget"]) == (SCORE, {"max_bu": 3})
    for each in (plain, scored, charged):
        assert Manifest.of_core(each.core()).content_id == each.content_id


def test_the_faults_of_both_are_reported_with_line_and_field() -> None:
    text = (
        "kind: work\nscore:\n  phases: {plan: 1, work: 1, review: 1}\nbudget:\n  per_beat:\n    tokens: 3\n"
    )
    with pytest.raises(BadManifest) as raised:
        parse_manifests(text, "job.yaml")
    assert [fault.split(";")[0] for fault in raised.value.faults] == [
        "job.yaml:3: score.phases: they sum to 3 beats, and bar_len is 8",
        "job.yaml:6: budget.per_beat.tokens: is no resource",
    ]
    with pytest.raises(BadManifest, match="score: must be a map, not text"):
        Manifest.of(kind="work", score="fast")


# --- scores --------------------------------------------------------------------------------------


async def test_a_command_that_runs_forever_ends_with_its_phrase(node: MeshNode) -> None:
    job = await command(node, *FOR_EVER, score=ONCE)
    (end,) = await ends_of(node, job)
    assert (job.state, job.reason) == ("failed", "its phrase of 4 beats is over")
    assert (end.outcome, end.attempt, end.overruns, end.agent_id) == ("failed", 1, 1, "worker")
    assert (end.beats["plan"], end.beats["work"]) == (1, 2)
    assert end.bu == pytest.approx(sum(end.beats.values()))
    assert end.bu >= 4
    assert end.resources.mem_gbs is not None
    assert [(each["name"], each["size"]) for each in job.outputs] == [("stdout", 6), ("stderr", 0)]


async def test_what_overruns_is_tried_again_in_a_shorter_phrase_and_then_not_any_more(node: MeshNode) -> None:
    job = await command(node, *FOR_EVER, score=SCORE, max_attempts=9)
    ends = await ends_of(node, job)
    assert job.state == "failed"
    assert [(end.outcome, end.attempt, end.overruns) for end in ends] == [
        ("deferred", 1, 1),
        ("failed", 2, 1),
    ]
    assert ["of 4 beats" in ends[0].note, "of 3 beats" in ends[1].note] == [True, True]


async def test_a_handler_sees_its_beats_and_goes_on_from_its_checkpoint(node: MeshNode) -> None:
    seen: list[tuple[Any, float | None]] = []

    @node.worker.handles("work")
    async def handle(context: JobContext) -> str:
        left = context.beats_left
        assert context.phrase_beats is not None
        assert left is not None
        assert 0 <= left <= context.phrase_beats
        seen.append((context.resumed, context.phrase_beats))
        if context.resumed is None:
            await context.checkpoint("half way")
            await asyncio.Event().wait()
        return "done"

    job = await work(node, score=SCORE | {"bar_len": 16, "phases": {"plan": 4, "work": 8, "review": 4}})
    async with node.worker.running():
        (found,) = await ended(node, job)
    assert (found.state, seen) == ("succeeded", [(None, 16), ("half way", 8)])
    assert [end.outcome for end in await ends_of(node, job)] == ["deferred", "done"]


async def test_an_attempt_that_is_aborted_while_it_runs_is_charged_once(node: MeshNode) -> None:
    desk = ControlledHandler(node)
    job = await work(node, score=SCORE | {"start": "now"}, budget={"max_bu": 1_000})
    async with node.worker.running():
        await desk.next()
        await node.jobs.abort(job, reason="not needed")
        await asyncio.wait_for(desk.next_stopped(), PATIENCE_S)
    (end,) = await ends_of(node, job)
    assert (end.outcome, end.note) == ("deferred", "it was stopped")
    assert not await node.store.read("SELECT 1 FROM phrase_begins", fresh=True)  # the same id was derived


async def test_a_job_without_score_and_budget_is_not_metered_and_has_no_beats(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        context.charge(gpu_sec={"A100": 3.2})
        return [context.phrase_beats, context.beats_left, context.limits is None]

    job = await work(node)
    async with node.worker.running():
        (found,) = await ended(node, job)
    (result,) = found.outputs
    assert orjson.loads(await node.artifacts.body(result["hash"])) == [None, None, True]
    assert await ends_of(node, job) == []


async def test_what_a_failed_attempt_leaves_is_no_more_than_its_phrases_allow(node: MeshNode) -> None:
    job = await command(node, "/bin/false", score=SCORE, max_attempts=9)
    assert (job.state, job.attempts, job.reason) == ("failed", 2, "ended with exit code 1")
    assert [end.overruns for end in await ends_of(node, job)] == [0, 0]
