"""Five nodes whose clocks are wrong, whose leader dies and whose lines are cut: one rhythm all the same."""

from __future__ import annotations

import asyncio
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import pytest

from tests.rhythm.orchestra import SkewedNode, SkewedNodes, orchestra
from tests.support.running.lengths import SOAK
from vox_mesh.errors import MeshError
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.reports import BarReport

NAMES = ("a", "b", "c", "d", "e")
STEP_MS = 500
BARS = 400 if SOAK else 30
PATIENCE_S = 300.0 if SOAK else 60.0
SEEDS = range(10) if SOAK else (2,)


def policy(bpm: float) -> TempoPolicy:
    """Bars of four beats."""
    return TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": bpm, "bar_len_beats": 4})


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
async def test_clocks_leaders_and_lines_may_fail_and_every_bar_is_reported_once_or_named_missing(
    seed: int, tmp_path: Path
) -> None:
    chance = Random(seed)
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 60, bar_len_beats: 4}")
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo) as shared_mesh:
        for name in NAMES:
            skew_ms, drift = chance.randint(-20_000, 20_000), chance.uniform(-0.01, 0.01)
            await shared_mesh.begin(name, skew_ms=skew_ms, drift=drift)
        for step in range(BARS * 4_000 // STEP_MS):
            await _disturb(shared_mesh, chance, step)
            for player in shared_mesh.living:
                player.playing.rhythm.status.claim(player.name, "task", "executing", progress=step % 10 / 10)
            await shared_mesh.turn(STEP_MS)
            _beats_differ_only_by_the_clocks(shared_mesh)
            _those_in_touch_go_by_one_policy(shared_mesh)
            in_touch = [name for name in shared_mesh.leaders() if not shared_mesh.players[name].line.is_cut]
            assert len(in_touch) <= 1  # a node that is cut off may believe it while its clock is slow
        for name, player in shared_mesh.players.items():
            player.line.is_cut = False
            while player.node is None and not await shared_mesh.begin(name):
                await shared_mesh.turn(STEP_MS)
        for player in shared_mesh.living:
            player.playing.rhythm.status.claim(player.name, "task", "done")
        for _ in range(6 * 8):
            await shared_mesh.turn(STEP_MS)
        assert len(shared_mesh.leaders()) == 1
        assert len({player.playing.rhythm.frame().policy_hash for player in shared_mesh.living}) == 1
        views = [await player.playing.rhythm.bar_reporter.reports(10_000) for player in shared_mesh.living]
        assert all(view == views[0] for view in views)
        _each_bar_is_there_once(views[0], shared_mesh.living[0])


async def _disturb(shared_mesh: SkewedNodes, chance: Random, step: int) -> None:
    leaders = shared_mesh.leaders()
    if step % 61 == 30 and leaders:
        await shared_mesh.kill(leaders[0])
    for name, player in shared_mesh.players.items():
        if player.node is None and chance.random() < 0.05:
            await shared_mesh.begin(name)
    if step % 23 == 11:
        shared_mesh.cut_or_mend(chance.choice(NAMES))
    if step % 17 == 5:
        shared_mesh.players[chance.choice(NAMES)].skew_ms += chance.randint(-5_000, 5_000)
    if step % 97 == 40:
        able = [player for player in shared_mesh.living if not player.line.is_cut]
        try:
            await able[0].playing.rhythm.policies.set(policy(chance.randint(30, 120)))
        except (IndexError, MeshError):
            return


def _beats_differ_only_by_the_clocks(shared_mesh: SkewedNodes) -> None:
    """Of two that know the same tempos, one is in another beat only if that begins between their times."""
    for one, two in combinations(shared_mesh.living, 2):
        rhythms = one.playing.rhythm, two.playing.rhythm
        if rhythms[0].timeline != rhythms[1].timeline:
            continue
        epochs = sorted(rhythm.frame().epoch_ms for rhythm in rhythms)
        times = sorted(rhythm.times.now_ms for rhythm in rhythms)
        assert epochs[0] == epochs[1] or times[0] < epochs[1] <= times[1]
        differ_ms = abs(shared_mesh.error_ms(one) - shared_mesh.error_ms(two))
        assert epochs[1] - epochs[0] <= differ_ms + max(rhythm.frame().beat_ms for rhythm in rhythms)


def _those_in_touch_go_by_one_policy(shared_mesh: SkewedNodes) -> None:
    """A node in touch for two bars before a change makes it at the same downbeat as the others."""
    bar_ms = max(player.playing.rhythm.frame().beat_ms * 4 for player in shared_mesh.living)
    in_touch = [
        player
        for player in shared_mesh.living
        if player.playing.clock.is_set  # one that began again too soon is refused for a while
        and not player.line.is_cut
        and shared_mesh.now_ms - player.since_ms > 3 * bar_ms
    ]
    assert (
        len({player.playing.rhythm.context.plan.at(shared_mesh.now_ms).policy_hash for player in in_touch})
        <= 1
    )


def _each_bar_is_there_once(reports: list[BarReport], player: SkewedNode) -> None:
    ordered = sorted(reports, key=lambda report: report.start_ms)
    for before, after in pairwise(ordered):
        assert before.end_ms == after.start_ms, "a bar is missing, or there twice"
    timeline = player.playing.rhythm.timeline
    for report in ordered:
        assert len(list(timeline.windows(report.start_ms, report.end_ms))) == report.bars
