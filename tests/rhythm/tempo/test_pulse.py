"""The pulse: beats come when they begin, to everyone who listens, and no one waits for a slow listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nodes.virtual_time import VirtualLoop, dependencies, in_virtual_time
from vox_mesh import Mesh, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.model.rhythm.plan import BeatFrame
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.testing import MeshHarness

FAST = "{cluster_id: east, initial_bpm: 600, bar_len_beats: 4}"
PATIENCE_S = 30.0


@pytest.fixture
def tempo_file(tmp_path: Path) -> Path:
    """A policy with beats of a tenth of a second."""
    path = tmp_path / "tempo.yaml"
    path.write_text(FAST)
    return path


@in_virtual_time
async def test_beats_follow_each_other_without_a_gap_for_everyone_who_listens(tempo_file: Path) -> None:
    settings = load_settings(_env_file=None, tempo_policy=tempo_file)
    async with Mesh.open(settings, dependencies()) as mesh:

        async def listen() -> list[tuple[int, int]]:
            heard: list[tuple[int, int]] = []
            async for frame in mesh.rhythm.beats():
                assert frame.epoch_ms <= mesh.rhythm.times.now_ms
                heard.append((frame.epoch_ms, frame.beat_index))
                if len(heard) == 9:
                    break
            return heard

        one, two = await asyncio.gather(listen(), listen())
        assert one == two
        assert [epoch_ms - one[0][0] for epoch_ms, _ in one] == [100 * beat for beat in range(9)]
        assert [index for _, index in one] == [(one[0][1] - 1 + beat) % 4 + 1 for beat in range(9)]


@in_virtual_time
async def test_a_beat_that_begins_right_after_the_listening_is_heard(tempo_file: Path) -> None:
    settings = load_settings(_env_file=None, tempo_policy=tempo_file)
    async with Mesh.open(settings, dependencies()) as mesh:
        beats = mesh.rhythm.beats()
        first = asyncio.ensure_future(anext(beats))
        await asyncio.sleep(0)
        ends_ms = mesh.rhythm.context.beat().ends_ms
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.pass_time((ends_ms - mesh.rhythm.times.now_ms) / 1_000 + 0.15)
        assert (await first).epoch_ms == ends_ms
        await beats.aclose()


async def test_when_no_one_listens_any_more_nothing_beats(tempo_file: Path) -> None:
    settings = load_settings(_env_file=None, tempo_policy=tempo_file)
    async with asyncio.timeout(PATIENCE_S), Mesh.open_command(settings) as mesh:
        beats = mesh.rhythm.beats()
        await anext(beats)
        assert "vox-mesh-pulse" in {task.get_name() for task in asyncio.all_tasks()}
        await beats.aclose()
        await asyncio.sleep(0)
        assert "vox-mesh-pulse" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_who_begins_to_listen_as_another_ends_hears_the_next_beat(tempo_file: Path) -> None:
    settings = load_settings(_env_file=None, tempo_policy=tempo_file)
    async with asyncio.timeout(PATIENCE_S), Mesh.open_command(settings) as mesh:
        for _ in range(3):
            beats = mesh.rhythm.beats()
            await anext(beats)
            await beats.aclose()


async def test_with_the_node_its_beats_end(tempo_file: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with Mesh.open(load_settings(_env_file=None, tempo_policy=tempo_file)) as mesh:
            beats = mesh.rhythm.beats()
            await anext(beats)
        async for _ in beats:
            pass  # some may have come while the node left


@pytest.mark.parametrize("jump_s", [2, 360], ids=["short", "more-bars-than-a-slow-listener-may-miss"])
async def test_a_clock_that_jumps_has_the_downbeats_that_it_left_out_reported(
    tempo_file: Path, jump_s: int
) -> None:
    async with asyncio.timeout(PATIENCE_S), MeshHarness() as harness:
        node = await harness.node(tempo_policy=tempo_file)
        beats = node.rhythm.beats()
        last = (await anext(beats)).epoch_ms
        advancing = asyncio.create_task(harness.clock.advance(f"{jump_s}s"))
        heard = [frame async for frame in _until(beats, last + jump_s * 1_000)]
        await advancing
        bars = [frame.epoch_ms for frame in heard if frame.downbeat]
        assert bars == list(range(bars[0], bars[-1] + 1, 400))
        assert len(bars) >= jump_s * 1_000 // 400


async def _until(beats: AsyncIterator[BeatFrame], at_ms: int) -> AsyncIterator[BeatFrame]:
    async for frame in beats:
        yield frame
        if frame.epoch_ms >= at_ms - 100:
            return


async def test_a_policy_that_is_set_where_no_node_lives_holds_at_once_and_else_two_bars_ahead(
    tmp_path: Path,
) -> None:
    policy = TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": 120, "bar_len_beats": 4})
    settings = load_settings(
        _env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox", db_path=tmp_path / "mesh.db"
    )
    async with Mesh.open_command(settings) as command:
        entry = await command.rhythm.policies.set(policy)
        assert entry.anchor_ms <= command.rhythm.times.now_ms
        assert command.rhythm.frame().tempo_bpm == 120
    async with Mesh.open(settings) as node, Mesh.open_command(settings) as command:
        assert node.rhythm.frame().policy_hash == entry.policy_hash
        faster = policy.model_copy(update={"initial_bpm": 240.0})
        announced = await command.rhythm.policies.set(faster, "more to do")
        assert announced.anchor_ms - command.rhythm.times.now_ms >= 2 * 4 * 500
        assert command.rhythm.frame().tempo_bpm == 120
        assert command.rhythm.frame(announced.anchor_ms).tempo_bpm == 240
        assert command.rhythm.frame(announced.anchor_ms).downbeat
        (op,) = [each for each in await command.oplog.tail(10) if each.op_id == announced.op_id]
        assert (op.kind, op.accepted) == ("SetTempo", True)


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"VOX_MESH_TEMPO_POLICY: .*none.yaml can't be read"):
        async with Mesh.open(load_settings(_env_file=None, tempo_policy=tmp_path / "none.yaml")):
            pass
