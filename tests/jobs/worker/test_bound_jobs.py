"""Jobs that are bound to the rhythm are claimed from the next downbeat on, or while a phase lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from vox_mesh import JobContext, Mesh
from vox_mesh.errors import BadManifest, BadValue, Refused
from vox_mesh.jobs.transitions import OUTSIDE
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.rhythm.bindings import AT_DOWNBEAT, WITH_BAR, Opening, during
from vox_mesh.model.rhythm.openings import next_opening_ms, opening_at
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness
from vox_mesh.testing.harness import IsolatedSettings

_PATIENCE_S: Final = 30.0
_BEAT_MS: Final = 5_000  # of the built-in policy
_BAR_MS: Final = 8 * _BEAT_MS
_SCORE: Final = {"phases": {"plan": 2, "work": 4, "review": 2}}


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    """A harness, two thirds of a beat into the third beat of a bar: the mesh has begun to work."""
    async with MeshHarness() as harness:
        await to_beat(harness, 2)
        yield harness


async def to_beat(harness: MeshHarness, beat: int) -> None:
    """Turn the clock to the next beat that follows this many of its bar."""
    into_ms = beat * _BEAT_MS + 3_000
    await harness.clock.advance(f"{(into_ms - harness.clock.now_ms) % _BAR_MS}ms")


async def working(harness: MeshHarness) -> tuple[MeshNode, list[tuple[Any, int]]]:
    """A node that works on jobs, and for each attempt the payload of the job and the beat of its start."""
    node, starts = await harness.node(), list[tuple[Any, int]]()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        starts.append((context.payload, node.clock.now_ms % _BAR_MS // _BEAT_MS))
        if context.payload == "fails" and context.job.failures == 0:
            raise RuntimeError("the first attempt fails")

    await node.worker.start()
    return node, starts


async def looked(node: MeshNode) -> None:
    """Wait until the worker has claimed what it may claim now: a job that waits for nothing is the last."""
    after = await node.jobs.schedule("work", "free", priority=0)
    assert (await node.jobs.wait(after, timeout=_PATIENCE_S)).state == "succeeded"


@pytest.mark.parametrize(
    ("bound", "beat"),
    [
        ({"at": "downbeat"}, 0),
        ({"at": "downbeat", "score": {"start": "now"}}, 0),
        ({"during": "review"}, 6),
        ({"during": "plan", "score": _SCORE}, 0),
        ({"score": _SCORE}, 0),
    ],
    ids=str,
)
async def test_a_bound_job_starts_in_its_part_of_the_bar_and_not_before(
    harness: MeshHarness, bound: dict[str, Any], beat: int
) -> None:
    node, starts = await working(harness)
    job = await node.jobs.schedule("work", "bound", priority=3, **bound)
    for passed in (*range(3, 8), 0):
        await to_beat(harness, passed)
        if passed == beat:
            break
        await looked(node)
    assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"
    assert [began for name, began in starts if name == "bound"] == [beat]


async def test_each_attempt_waits_for_the_phase_and_one_that_was_missed_for_the_next_bar(
    harness: MeshHarness,
) -> None:
    node, starts = await working(harness)
    await node.worker.stop()
    job = await node.jobs.schedule("work", "fails", during="review", priority=3)
    await to_beat(harness, 6)
    await to_beat(harness, 0)
    await node.worker.start()
    await looked(node)
    assert ("fails", 0) not in starts
    await to_beat(harness, 7)
    while (await node.jobs.find(job)).failures == 0:
        await looked(node)
    await to_beat(harness, 3)
    await looked(node)
    await to_beat(harness, 6)
    assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"
    assert [began for name, began in starts if name == "fails"] == [7, 6]


async def test_a_job_waits_for_the_phase_by_the_tempo_that_is_in_force_then(harness: MeshHarness) -> None:
    node, _ = await working(harness)
    faster = {"cluster_id": "c", "initial_bpm": 60, "bar_len_beats": 4, "phases": {"work": 3, "review": 1}}
    entry = await node.rhythm.policies.set(TempoPolicy.of_document(faster))
    for _ in range(4):
        await to_beat(harness, 2)
    assert harness.clock.now_ms > entry.anchor_ms
    job = await node.jobs.schedule("work", "bound", during="review", priority=3)
    while (await node.jobs.find(job)).state == "pending":
        await harness.clock.advance("200ms")
        await looked(node)
    started_ms = (await node.jobs.wait(job, timeout=_PATIENCE_S)).started_ms or 0
    assert (started_ms - entry.anchor_ms) % 4_000 >= 3_000


async def test_a_phase_that_no_bar_has_is_refused(harness: MeshHarness) -> None:
    node = await harness.node()
    with pytest.raises(BadValue, match="during must be a phase of the mesh's bars, got 'lunch'") as refused:
        await node.jobs.schedule("work", during="lunch")
    assert "the phases are plan, work, review" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"at": "noon"}, "at: must not be 'noon'; allowed: downbeat"),
        ({"during": "Lunch!"}, "during: "),
        ({"at": "downbeat", "during": "work"}, "at: can't be combined with during"),
        ({"during": "work", "score": {"start": "downbeat"}}, "during: can't be combined with a score"),
    ],
    ids=str,
)
def test_a_manifest_says_what_is_wrong_with_a_binding(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadManifest) as bad:
        Manifest.of(kind="work", **fields)
    assert bad.value.faults[0].startswith(fault)


async def test_a_binding_is_no_part_of_the_id_and_a_retry_keeps_it(harness: MeshHarness) -> None:
    node = await harness.node()
    for fields, binding in (
        ({"at": "downbeat"}, AT_DOWNBEAT),
        ({"during": "review"}, during("review")),
        ({"score": _SCORE}, WITH_BAR),
        ({}, None),
    ):
        manifest = Manifest.of(kind="work", nonce="one", **fields)
        assert (manifest.content_id == Manifest.of(kind="work", nonce="one").content_id) is (
            "score" not in fields
        )
        job = await node.jobs.schedule("work", **fields)
        await node.jobs.abort(job)
        again = await node.jobs.retry(job)
        assert [(await node.jobs.find(each)).binding for each in (job, again)] == [binding] * 2


async def test_the_database_refuses_a_claim_outside_of_the_opening(harness: MeshHarness) -> None:
    node = await harness.node()
    job = await node.jobs.schedule("work", during="review")
    now_ms = await node.nodes.now_ms()
    items = [{"job_id": job.job_id, "claim_token": 1}]
    for within in (Opening(0, now_ms, 0), Opening(now_ms + 60_000, now_ms + 70_000, 0)):
        claim, start = await node.store.write_all(
            node.jobs.transitions.take(items, items, 60_000, within=within)
        )
        assert isinstance(claim, Refused)
        assert claim.reason == OUTSIDE
        assert isinstance(start, Refused)
    assert (await node.jobs.find(job)).state == "pending"


async def test_a_worker_wakes_at_the_opening_and_not_by_chance(tmp_path: Path) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: c, initial_bpm: 600, bar_len_beats: 8}")
    settings = IsolatedSettings(home_dir=tmp_path, http=False, tempo_policy=tempo, tick="60s")
    async with asyncio.timeout(_PATIENCE_S), Mesh.open(settings) as node:
        node.worker.handles("work")(_nothing)
        await node.worker.start()
        job = await node.jobs.schedule("work", during="review")
        started_ms = (await node.jobs.wait(job)).started_ms or 0
        looks = node.worker.claims_sent
    assert started_ms % 800 >= 600
    assert looks == 1


async def _nothing(_: JobContext) -> None:
    return None


# --- crons -----------------------------------------------------------------------------------------


async def test_a_cron_in_bars_fires_on_every_nth_downbeat_by_the_tempo_in_force(harness: MeshHarness) -> None:
    node = await harness.node()
    fields = {"kind": "work", "during": "review"}
    cron = await node.crons.add("often", "every  2 bars", fields)
    assert (cron.expression, cron.next_ms % _BAR_MS) == ("every 2 bars", 0)
    fired: list[int] = []
    while len(fired) < 3:
        await harness.clock.advance(f"{_BEAT_MS}ms")
        (cron,) = await node.crons.listed()
        if cron.last_ms is not None and cron.last_ms not in fired:
            fired.append(cron.last_ms)
            assert 0 <= harness.clock.now_ms - cron.last_ms < _BEAT_MS + 2_000
    assert [after - before for before, after in pairwise(fired)] == [2 * _BAR_MS] * 2
    assert (await node.jobs.find(cron.last_job or "")).binding == during("review")
    shorter = {"cluster_id": "c", "initial_bpm": 60, "bar_len_beats": 4}
    entry = await node.rhythm.policies.set(TempoPolicy.of_document(shorter))
    await node.catch_up()
    (cron,) = await node.crons.listed()
    while cron.next_ms <= entry.anchor_ms + 4_000:
        await harness.clock.advance(f"{max(1, cron.next_ms + 1 - harness.clock.now_ms)}ms")
        (cron,) = await node.crons.listed()
    assert cron.next_ms - (cron.last_ms or 0) == 8_000


@pytest.mark.parametrize(
    ("expression", "fields", "timezone", "fault"),
    [
        ("every 0 bars", {}, "UTC", "a schedule must be every 1 to 10000 bars, got 0"),
        ("every 2 bars", {}, "Europe/Berlin", "a schedule in bars has no time zone"),
        ("every 2 beats", {}, "UTC", "'every 2 beats' is no schedule"),
        ("every bar", {"during": "lunch"}, "UTC", "during must be a phase of the mesh's bars"),
    ],
)
async def test_a_cron_that_can_not_be_in_bars_is_refused(
    harness: MeshHarness, expression: str, fields: dict[str, str], timezone: str, fault: str
) -> None:
    node = await harness.node()
    with pytest.raises(BadValue, match=fault):
        await node.crons.add("often", expression, {"kind": "work", **fields}, timezone)


# --- openings --------------------------------------------------------------------------------------


def plan_of(*phases: dict[str, int]) -> Plan:
    """A plan with a beat a second; the second policy is in force from the third bar on."""
    entries = [
        PlanEntry.of(
            TempoPolicy.of_document(
                {"cluster_id": "c", "initial_bpm": 60, "bar_len_beats": 8, "phases": each}
            )
        )
        for each in phases
    ]
    plan = Plan(entries[0])
    for entry in entries[1:]:
        plan = Plan(entries[0], [plan.followed_by(entry.policy, 60, 16_000, "")])
    return plan


@pytest.mark.parametrize(
    ("binding", "at_ms", "opening", "next_ms"),
    [
        (AT_DOWNBEAT, 8_000, Opening(8_000, 16_000, 8_000), 16_000),
        (AT_DOWNBEAT, 7_999, Opening(0, 8_000, 0), 8_000),
        (WITH_BAR, 9_999, Opening(8_000, 10_000, 8_000), 16_000),
        (WITH_BAR, 10_000, None, 16_000),
        ("during:review", 5_999, None, 6_000),
        ("during:review", 7_999, Opening(6_000, 8_000, 8_000), 14_000),
        ("during:review", 15_999, Opening(14_000, 16_000, 16_000), None),
        ("during:rest", 0, None, 23_000),
        ("during:rest", 30_999, None, 31_000),
        ("anything", 0, None, None),
    ],
)
def test_an_opening_follows_from_the_tempos(
    binding: str, at_ms: int, opening: Opening | None, next_ms: int | None
) -> None:
    plan = plan_of({"plan": 2, "work": 4, "review": 2}, {"work": 7, "rest": 1})
    assert opening_at(plan, binding, at_ms) == opening
    assert next_opening_ms(plan, binding, at_ms) == next_ms
