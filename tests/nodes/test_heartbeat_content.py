"""A heartbeat writes only what it has to, and wakes only what reads it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.heartbeat.content import ContentChooser, HeartbeatContent
from vox_mesh.model.nodes.liveness import Vitals
from vox_mesh.node import MeshNode

_NEVER_S = 3_600.0
_QUIET = Vitals()
_PATIENCE_S = 60.0
_ALL, _NOTHING = HeartbeatContent(True, True), HeartbeatContent(False, False)


@dataclass
class Writer:
    """A process whose heartbeats are written at once."""

    now_s: float = 0.0
    answered: int = 5

    def __post_init__(self) -> None:
        self.chooser = ContentChooser(lambda: self.now_s, lambda: self.answered)

    def beat(
        self, vitals: Vitals = _QUIET, scripts: int = 1, *, is_confirming: bool = False
    ) -> HeartbeatContent:
        """Write a heartbeat, and return what was in it."""
        content = self.chooser.choose(vitals, is_confirming=is_confirming)
        self.answered += scripts
        self.chooser.written(content, vitals, scripts)
        return content


def test_a_node_that_writes_nothing_else_repeats_neither_its_count_nor_its_vitals() -> None:
    writer = Writer()
    assert [writer.beat(scripts=many) for many in (1, 1, 3, 1)] == [_ALL, _NOTHING, _NOTHING, _NOTHING]
    writer.now_s += 3_600.0
    assert [writer.beat() for _ in range(2)] == [_ALL, _NOTHING]


def test_what_was_written_since_is_counted_by_the_next_heartbeat() -> None:
    writer = Writer()
    writer.beat()
    writer.answered += 1
    assert [writer.beat() for _ in range(2)] == [_ALL, _NOTHING]


def test_what_is_answered_while_a_heartbeat_is_written_is_counted_by_the_one_after() -> None:
    writer = Writer()
    content = writer.chooser.choose(Vitals())
    writer.answered += 2
    writer.chooser.written(content, Vitals(), 1)
    assert [writer.beat() for _ in range(2)] == [_ALL, _NOTHING]


def test_a_heartbeat_that_failed_is_made_up_for() -> None:
    writer = Writer()
    writer.beat()
    assert writer.chooser.choose(Vitals(waiting=3)) == HeartbeatContent(False, True)
    assert writer.beat(Vitals(waiting=3)) == HeartbeatContent(False, True)


@pytest.mark.parametrize(
    "changed",
    [
        Vitals(faults=("clock",)),
        Vitals(waiting=1),
        Vitals(replica_lag_ms=20_000),
        Vitals(cpu_utilisation=0.5),
        Vitals(gpu_utilisation=0.1),
    ],
    ids=str,
)
def test_vitals_are_reported_when_they_change(changed: Vitals) -> None:
    writer = Writer()
    writer.beat()
    assert [writer.beat(changed) for _ in range(2)] == [HeartbeatContent(False, True), _NOTHING]


def test_a_load_that_moves_a_little_is_reported_once_the_last_report_is_old() -> None:
    writer = Writer()
    writer.beat(Vitals(cpu_utilisation=0.50))
    found = [writer.beat(Vitals(cpu_utilisation=each)).reports for each in (0.52, 0.70, 0.76, 0.60)]
    assert found == [False, False, True, False]
    writer.now_s += 300.0
    assert [writer.beat(Vitals(cpu_utilisation=each)).reports for each in (0.74, 0.60)] == [False, True]


def test_a_load_is_no_reason_for_an_earlier_heartbeat() -> None:
    writer = Writer()
    writer.beat(Vitals(cpu_utilisation=0.1))
    assert not writer.chooser.has_news(Vitals(cpu_utilisation=1.0), ())
    assert writer.chooser.has_news(Vitals(cpu_utilisation=0.1, faults=("clock",)), ())
    assert writer.chooser.choose(Vitals(cpu_utilisation=1.0)).reports, "the next one reports it"


def test_a_frame_on_its_way_is_no_news() -> None:
    writer = Writer()
    writer.beat(Vitals(replica_lag_ms=0))
    assert not writer.beat(Vitals(replica_lag_ms=5_000)).reports


def test_every_heartbeat_counts_while_a_step_of_the_clock_is_confirmed() -> None:
    writer = Writer()
    writer.beat()
    assert writer.beat(is_confirming=True).counts


# --- on a server -------------------------------------------------------------------------------------


async def test_an_idle_heartbeat_is_one_page_and_wakes_only_what_reads_the_membership(
    tmp_path: Path, shared_server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, shared_server, tick=f"{_NEVER_S:.0f}s")
    async with Mesh.open(settings) as node, Mesh.open(settings) as other:
        for _ in range(2):  # the first one also reports what the start has written
            await _beat(node, other)
        # Other tests of the server write as well: the frames of one of these are the heartbeat's alone.
        found = [await _costs(node, other) for _ in range(5)]
    assert (1, 1, 0) in found, found


async def _beat(node: MeshNode, watching: MeshNode) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await node._heartbeat.run_once()
        await watching.store.synced()


async def _costs(node: MeshNode, watching: MeshNode) -> tuple[int, int, int]:
    """Return the frames of a heartbeat, and what another process counts: all commits, and the others."""
    before = _counts(watching)
    await _beat(node, watching)
    frames, changes, others = (late - early for early, late in zip(before, _counts(watching), strict=True))
    return frames, changes, others


def _counts(node: MeshNode) -> tuple[int, int, int]:
    status = node.store.replica_status
    assert status is not None
    assert status.frame is not None
    return status.frame, node.store.change_count, node.store.but_heartbeats.change_count
