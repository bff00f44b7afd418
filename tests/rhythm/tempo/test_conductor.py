"""The conductor: who leads, who stands in, and what happens where nodes do not agree."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.rhythm.orchestra import SkewedNode, SkewedNodes, orchestra
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.rhythm.plan import PlanEntry, TempoSource
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.store.script import Script, Statement

BAR_MS = 1_000
PATIENCE_S = 60.0
POLICY = "{cluster_id: east, initial_bpm: 240, bar_len_beats: 4}"


def policy(bpm: float) -> TempoPolicy:
    """Bars of four beats."""
    return TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": bpm, "bar_len_beats": 4})


@pytest.fixture
def tempo_file(tmp_path: Path) -> Path:
    """Beats of a quarter of a second."""
    path = tmp_path / "tempo.yaml"
    path.write_text(POLICY)
    return path


async def begun(shared_mesh: SkewedNodes, *names: str) -> list[SkewedNode]:
    """Nodes that have seen their first bars."""
    for name in names:
        assert await shared_mesh.begin(name)
    for _ in range(12):
        await shared_mesh.turn(BAR_MS // 4)
    return [shared_mesh.players[name] for name in names]


async def written(shared_mesh: SkewedNodes, sql: str, *values: str | int | float) -> None:
    """Something in the database that no node of ours has written."""
    (player, *_) = shared_mesh.living
    script = Script(Statement(sql, ("", "default", *values)))
    await player.playing.store.write(script)


async def test_a_node_that_has_just_begun_has_no_duties_and_then_one_of_all_leads(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        for name in ("a", "b", "c"):
            await shared_mesh.begin(name)
        await shared_mesh.turn(BAR_MS - 1)
        assert shared_mesh.leaders() == []
        for _ in range(8):
            await shared_mesh.turn(BAR_MS // 4)
        (leader,) = shared_mesh.leaders()
        assert {(await player.playing.rhythm.leader()).node_id for player in shared_mesh.living} == {leader}  # type: ignore[union-attr]
        assert await shared_mesh.players["a"].playing.locks.holders() == []
        token = shared_mesh.players[leader].playing.rhythm.leadership.fence_token
        await shared_mesh.kill(leader)
        await shared_mesh.turn(BAR_MS)
        assert shared_mesh.leaders() == []
        for _ in range(6):
            await shared_mesh.turn(BAR_MS)
        (heir,) = shared_mesh.leaders()
        assert shared_mesh.players[heir].playing.rhythm.leadership.fence_token > token  # type: ignore[operator]


async def test_who_leaves_lets_another_one_lead_with_the_next_bar(tmp_path: Path, tempo_file: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        await begun(shared_mesh, "a", "b")
        (leader,) = shared_mesh.leaders()
        await shared_mesh.leave(leader)
        await shared_mesh.turn(BAR_MS)
        assert shared_mesh.leaders() == [({"a", "b"} - {leader}).pop()]


async def test_the_policy_of_the_leaders_settings_becomes_that_of_all(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path) as shared_mesh:
        await shared_mesh.begin("a", tempo_policy=tempo_file)
        await begun(shared_mesh, "b")
        assert shared_mesh.leaders() == ["a"]
        for _ in range(2 * 80 * 4):
            await shared_mesh.turn(BAR_MS // 4)
            if len({player.playing.rhythm.frame().policy_hash for player in shared_mesh.living}) == 1:
                break
        assert shared_mesh.players["b"].playing.rhythm.frame().tempo_bpm == 240


async def test_where_no_one_leads_and_policies_differ_the_one_in_the_middle_is_followed_until_someone_leads(
    tmp_path: Path, tempo_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vox_mesh.rhythm")
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        one, *_ = await begun(shared_mesh, "a", "b", "c")
        own = one.playing.rhythm.frame()
        said = (
            "UPDATE beat_pulses SET document = ?4, tempo_bpm = ?5 WHERE scope_id = ?1 AND repository_id = ?2"
        )
        for name, bpm in (("b", 120.0), ("c", 60.0)):
            other = PlanEntry.of(policy(bpm)).policy
            await written(shared_mesh, f"{said} AND node_id = ?3", name, canonical(other.document()), bpm)
        for player in shared_mesh.living:
            player.line.is_mute = True
        for _ in range(11 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        assert shared_mesh.leaders() == []
        frame = one.playing.rhythm.frame()
        assert (frame.source, frame.tempo_bpm) == (TempoSource.MEDIAN, 120)
        assert "policies differ without a leader, following the median: policies=3" in caplog.text
        for player in shared_mesh.living:
            player.line.is_mute = False
        for _ in range(4 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        assert len(shared_mesh.leaders()) == 1
        assert one.playing.rhythm.frame().policy_hash == own.policy_hash
        assert one.playing.rhythm.frame().source is TempoSource.POLICY


async def test_tempos_that_an_older_copy_of_the_database_does_not_have_are_written_again(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        one, two = await begun(shared_mesh, "a", "b")
        entry = await one.playing.rhythm.policies.set(policy(120))
        for _ in range(4 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        await written(shared_mesh, "DELETE FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2")
        for _ in range(2 * 8):
            await shared_mesh.turn(BAR_MS // 4)
        rows = await two.playing.store.read("SELECT op_id FROM tempo_policies WHERE reason = 'set by hand'")
        assert [row["op_id"] for row in rows] == [entry.op_id]
        assert two.playing.rhythm.frame().tempo_bpm == 120


async def test_without_its_leader_a_bar_is_reported_by_another_one(tmp_path: Path, tempo_file: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        await begun(shared_mesh, "a", "b")
        (leader,) = shared_mesh.leaders()
        await shared_mesh.kill(leader)
        (other,) = shared_mesh.living
        other.playing.rhythm.status.claim("agent", "task", "executing")
        for _ in range(4 * 3):
            await shared_mesh.turn(BAR_MS // 4)
        assert shared_mesh.leaders() == []
        reports = await other.playing.rhythm.bar_reporter.reports(10)
        assert other.name in {report.node_id for report in reports}
        assert any(report.tasks.get("executing") for report in reports)


async def test_what_is_old_is_removed_by_the_leader_and_what_is_not_stays(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        assert await shared_mesh.begin("a")
        for name, days in (("old", 91), ("new", 89)):
            ended_ms = shared_mesh.now_ms - days * 86_400_000
            await written(
                shared_mesh,
                "INSERT INTO help_threads (scope_id, repository_id, thread_id, asker, state, asked_ms,"
                " closes_ms, ended_ms) VALUES (?1, ?2, ?3, 'a', 'expired', ?4, ?4, ?4)",
                *(name, ended_ms),
            )
        for _ in range(12):
            await shared_mesh.turn(BAR_MS // 4)
        rows = await shared_mesh.living[0].playing.store.read("SELECT thread_id FROM help_threads")
        assert [row["thread_id"] for row in rows] == ["new"]


async def test_a_policy_of_settings_counts_for_nothing_where_one_was_announced(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path) as shared_mesh:
        assert await shared_mesh.begin("a")
        await shared_mesh.players["a"].playing.rhythm.policies.set(policy(30))
        for _ in range(200):
            await shared_mesh.turn(1_000)
        assert await shared_mesh.begin("b", tempo_policy=tempo_file)
        assert shared_mesh.players["b"].playing.rhythm.frame().tempo_bpm == 30
        await shared_mesh.leave("a")
        two = shared_mesh.players["b"].playing
        two.rhythm.status.claim("agent", "task", "executing")
        for _ in range(60):
            await shared_mesh.turn(1_000)
        assert shared_mesh.leaders() == ["b"]
        assert two.rhythm.frame().tempo_bpm == 30
        assert any(report.tasks for report in await two.rhythm.bar_reporter.reports(10))
        assert (await two.rhythm.policies.set(policy(60))).tempo.bpm == 60


async def test_what_was_announced_after_a_restore_is_not_undone_by_what_was_before(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        one, two = await begun(shared_mesh, "a", "b")
        await one.playing.rhythm.policies.set(policy(100))
        for _ in range(12 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        restored = "DELETE FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2 AND tempo_bpm = 100"
        await written(shared_mesh, restored)
        assert await shared_mesh.begin("c")  # it knows nothing of what got lost
        chosen = await shared_mesh.players["c"].playing.rhythm.policies.set(policy(77))
        for _ in range(14 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        assert {player.playing.rhythm.frame().policy_hash for player in (one, two)} == {chosen.policy_hash}
        assert (await two.playing.rhythm.policies.set(policy(60))).tempo.bpm == 60


async def test_a_machine_whose_clock_is_wrong_when_it_begins_takes_part_as_the_others_do(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        assert await shared_mesh.begin("a", skew_ms=7_200_000)
        for _ in range(12):
            await shared_mesh.turn(BAR_MS // 4)
        assert shared_mesh.leaders() == ["a"]


async def test_a_database_whose_clock_was_ahead_for_a_moment_stops_nothing(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        (one,) = await begun(shared_mesh, "a")
        heard: set[int] = set()

        async def listen() -> None:
            async for frame in one.playing.rhythm.beats():
                heard.add(frame.epoch_ms)

        listening = asyncio.create_task(listen())
        for ahead_ms in (86_400_000, 0):
            shared_mesh.database_ahead_ms = ahead_ms
            for _ in range(4 * 8):
                await shared_mesh.turn(BAR_MS // 4)
                await asyncio.sleep(0)
            now_ms = shared_mesh.now_ms  # the time of the mesh goes on as if there had been no step
            assert any(now_ms - BAR_MS < epoch_ms <= now_ms for epoch_ms in heard)
            assert shared_mesh.leaders() == ["a"]
        listening.cancel()


async def test_where_bars_are_hours_long_someone_leads_all_the_time(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text("{cluster_id: east, initial_bpm: 0.5, bar_len_beats: 8}")
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=slow) as shared_mesh:
        await begun(shared_mesh, "a", "b")
        for _ in range(2 * 16 * 2):
            await shared_mesh.turn(30_000)
        (leader,) = shared_mesh.leaders()
        for _ in range(16 * 2):
            await shared_mesh.turn(30_000)
            assert shared_mesh.leaders() == [leader]


async def test_who_was_cut_off_calls_nothing_missing_that_the_leader_saw(
    tmp_path: Path, tempo_file: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        await begun(shared_mesh, "a", "b")
        (leader,) = shared_mesh.leaders()
        (other,) = {"a", "b"} - {leader}
        for _ in range(2):
            shared_mesh.cut_or_mend(other)
            for _ in range(6 * 4):
                await shared_mesh.turn(BAR_MS // 4)
        shared_mesh.players[leader].playing.rhythm.status.claim("agent", "task", "done")
        for _ in range(2 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        reports = await shared_mesh.players[leader].playing.rhythm.bar_reporter.reports(100)
        assert any(report.tasks for report in reports)
        assert not any(report.is_missing for report in reports)


async def test_the_first_full_bar_of_a_lone_node_was_watched(tmp_path: Path, tempo_file: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), orchestra(tmp_path, tempo_policy=tempo_file) as shared_mesh:
        shared_mesh.now_ms += BAR_MS // 2
        assert await shared_mesh.begin("a")
        rhythm = shared_mesh.players["a"].playing.rhythm
        rhythm.status.claim("agent", "task", "done")
        for _ in range(3 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        rhythm.status.claim("agent", "other", "done")
        for _ in range(2 * 4):
            await shared_mesh.turn(BAR_MS // 4)
        reports = (await rhythm.bar_reporter.reports(100))[::-1]
        assert [sum(report.tasks.values()) for report in reports] == [1, 0, 0, 1]
        assert not any(report.is_missing for report in reports)
