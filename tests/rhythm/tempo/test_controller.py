"""The controller on the mesh: decisions are in the log, changes announced, and any leader goes on with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh.errors import NotKnown, StaleFence, Unreachable
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import TEMPO_DECISION
from vox_mesh.model.rhythm.control import TempoDecision, state_after
from vox_mesh.model.rhythm.plan import LEAD_BARS
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.reports import BarReport, Figures, MeshStanding, ReportSource
from vox_mesh.model.rhythm.tempo import MINUTE_MS
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.write.breaker import Breaker

NOON_S: Final = 1_800_000_000.0
TTL_S: Final = 100.0
A_FEW_MS: Final = 20

PRESSED: Final = (Figures(tasks={"executing": 10}, reporters=2), MeshStanding(80, 8, 1.0))
OVERRUN: Final = (
    Figures(tasks={"executing": 10}, overruns={"executing": 4}, reporters=2),
    MeshStanding(80, 8, 1.0),
)
ALARMING: Final = (
    Figures(tasks={"executing": 10}, overruns={"executing": 9}, reporters=2),
    MeshStanding(80, 8, 1.0),
)
CALM: Final = (Figures(tasks={"executing": 2}, reporters=2), MeshStanding(0, 8, 0.55))


def policy_of(**changes: Any) -> TempoPolicy:
    """A policy that adapts, from 6 to 24 beats a minute."""
    document = {"cluster_id": "lab", "initial_bpm": 12.0, "adaptation": {"enable": True}}
    return TempoPolicy.of_document(document | changes)


class TempoNode:
    """A node that plays its part when it is asked to."""

    def __init__(self, node: MeshNode, clock: Clock) -> None:
        self.node = node
        self.rhythm = node.rhythm
        self._clock = clock
        self.controller = self.rhythm.controller

    async def lead(self) -> None:
        """Lead, or go on to."""
        assert await self.rhythm.leadership.keep(TTL_S)

    def report(self, of: tuple[Figures, MeshStanding]) -> BarReport:
        """A report of the bar before this one."""
        timeline, now_ms = self.rhythm.timeline, self.rhythm.times.now_ms
        window = timeline.window_at(timeline.window_at(now_ms).start_ms - 1)
        return BarReport.of_window(ReportSource(timeline, self.rhythm.context.entry), window, *of)

    async def pass_bar(self) -> None:
        """Let a bar pass, and learn on the downbeat what was announced."""
        beat = self.rhythm.context.beat()
        self._clock.now += (beat.window_ends_ms - self.rhythm.times.now_ms + A_FEW_MS) / 1_000
        await self.rhythm.refresh()
        await self.lead()

    async def bar(self, of: tuple[Figures, MeshStanding]) -> TempoDecision | None:
        """Let a bar pass that went like this, and do on the downbeat what a leader does."""
        await self.pass_bar()
        return await self.controller.decide(self.report(of))

    async def bars(self, of: tuple[Figures, MeshStanding], count: int) -> list[TempoDecision]:
        """The same for several; what was decided."""
        return [decision for _ in range(count) if (decision := await self.bar(of)) is not None]

    async def until_change(self, of: tuple[Figures, MeshStanding]) -> TempoDecision:
        """Bars like this until the tempo changes."""
        for _ in range(30):
            decision = await self.bar(of)
            if decision is not None and decision.is_change:
                return decision
        raise AssertionError("the tempo did not change")

    async def ops(self) -> list[LogEntry]:
        """The decisions in the log, also the ones that were refused."""
        return await self.node.oplog.tail(1_000, kind=TEMPO_DECISION)


class TempoMesh:
    """Where players meet, by one clock that only the test turns."""

    def __init__(self, there: RestartableNodes, clock: Clock) -> None:
        self._there = there
        self._clock = clock

    @asynccontextmanager
    async def player(self, name: str = "a", breaker: Breaker | None = None) -> AsyncIterator[TempoNode]:
        """One more."""
        dependencies = Dependencies(
            wall_ms=lambda: round(self._clock.now * 1_000),
            monotonic=self._clock,
            chance=lambda: 0.5,
            elapsed=self._clock,
        )
        async with self._there.node(name, dependencies, breaker=breaker) as node:
            yield TempoNode(node, self._clock)


@pytest.fixture
async def hall() -> AsyncIterator[TempoMesh]:
    """A mesh in memory."""
    clock = Clock(NOON_S)
    memory = SharedMemory(lambda: round(clock.now * 1_000))
    async with scene(memory) as there:
        yield TempoMesh(there, clock)
    await memory.drop()


@pytest.fixture
async def leader(hall: TempoMesh) -> AsyncIterator[TempoNode]:
    """One who leads a mesh that adapts, in its first bar by that policy."""
    async with hall.player() as player:
        await player.rhythm.policies.set(policy_of())
        await player.bars(CALM, 4)
        assert player.rhythm.policy == policy_of()
        yield player


async def test_a_change_is_decided_and_announced_in_one_op(leader: TempoNode) -> None:
    decision = await leader.until_change(PRESSED)
    assert decision.bpm == 13.0
    op = (await leader.ops())[-1]
    head = leader.rhythm.policies.announced.head
    assert (head.op_id, head.tempo.bpm, head.reason) == (op.op_id, 13.0, decision.reason)
    said = parse(op.payload)
    assert (said["bpm"], said["from_ms"], said["is_change"]) == (13, head.anchor_ms, True)
    assert said["readings"]["queue_depth"] == 80
    assert head.anchor_ms == decision.state.changed_ms
    assert leader.rhythm.context.entry.tempo.bpm == 12.0
    await leader.bars(CALM, 3)
    assert leader.rhythm.context.entry.tempo.bpm == 13.0


async def test_a_beat_moves_between_phases_two_bars_ahead_and_the_next_leader_goes_on(
    hall: TempoMesh,
) -> None:
    moving = policy_of(adaptation={"enable": True, "phases": True})
    short = (Figures(tasks={"executing": 40}, overruns={"planning": 4}, reporters=2), CALM[1])
    async with hall.player() as leader, hall.player("b") as other:
        await leader.rhythm.policies.set(moving)
        await leader.bars(CALM, 4)
        decision = await leader.until_change(short)
        head = leader.rhythm.policies.announced.head
        assert decision.phases == head.policy.phase_beats == {"plan": 3, "work": 3, "review": 2}
        assert (head.tempo.bpm, head.reason) == (12.0, "phases: plan is too short")
        assert head.anchor_ms - leader.rhythm.times.now_ms >= LEAD_BARS * head.tempo.bar_ms
        assert leader.rhythm.policy == moving, "not before its downbeat"
        last = (await leader.ops())[-1]
        await leader.rhythm.leadership.resign()
        await other.bars(CALM, 4)
        assert other.rhythm.policy == moving.with_phases({"plan": 3, "work": 3, "review": 2})
        assert other.rhythm.frame().policy_hash == head.policy_hash
        first = next(op for op in await other.ops() if op.node_id == "b")
        assert parse(first.payload)["before"] == parse(last.payload)["after"]
        assert await other.controller.replayed() == []


async def test_the_log_names_the_queues_and_the_load_of_the_machines(leader: TempoNode) -> None:
    await leader.bars((CALM[0], replace(CALM[1], cpu_utilisation=0.31)), 20)
    before = await leader.ops()
    await leader.bars((CALM[0], replace(CALM[1], cpu_utilisation=0.28)), 2)
    assert await leader.ops() == before, "noise writes nothing"
    standing = MeshStanding(80, 8, 1.0, None, {"build": 70, "test": 10}, 0.42, 0.0)
    await leader.bars((PRESSED[0], standing), 2)
    readings = parse((await leader.ops())[-1].payload)["readings"]
    assert readings["queue_by_kind"] == {"build": 70, "test": 10}
    assert (readings["cpu_utilisation"], readings["gpu_utilisation"]) == (0.4, 0)
    assert await leader.controller.replayed() == []


async def test_every_decision_is_an_op_and_all_of_them_can_be_made_again(leader: TempoNode) -> None:
    for of, count in ((PRESSED, 25), (OVERRUN, 12), (ALARMING, 2), (PRESSED, 8)):
        await leader.bars(of, count)
    ops = await leader.ops()
    assert all(op.accepted for op in ops)
    assert await leader.controller.replayed() == []
    changes = [parse(op.payload) for op in ops if parse(op.payload)["is_change"]]
    assert {change["reason"].partition(":")[0] for change in changes} == {"faster", "slower"}
    _, *anchors = [entry.anchor_ms for entry in leader.rhythm.policies.announced.entries]
    assert [change["from_ms"] for change in changes] == anchors[1:]
    assert all(later - earlier >= MINUTE_MS for earlier, later in pairwise(anchors))


async def test_the_next_leader_goes_on_where_the_last_one_stopped(hall: TempoMesh, leader: TempoNode) -> None:
    await leader.until_change(PRESSED)
    await leader.bars(PRESSED, 4)
    last = (await leader.ops())[-1]
    await leader.rhythm.leadership.resign()
    async with hall.player("b") as other:
        await other.bar(OVERRUN)
        op = (await other.ops())[-1]
        assert op.node_id == "b"
        assert parse(op.payload)["before"] == parse(last.payload)["after"]
        await leader.rhythm.refresh()
        assert other.rhythm.timeline == leader.rhythm.timeline
        assert await other.controller.replayed() == []


async def test_bars_that_are_all_alike_and_move_nothing_are_written_once(leader: TempoNode) -> None:
    await leader.bars(CALM, 20)
    before = await leader.ops()
    decisions = await leader.bars(CALM, 5)
    assert [decision.is_change for decision in decisions] == [False] * 5
    assert await leader.ops() == before


async def test_an_alarm_freezes_the_tempo_and_the_log_says_so(leader: TempoNode) -> None:
    await leader.bars(PRESSED, 2)
    before = state_after(parse((await leader.ops())[-1].payload))
    decision = await leader.bar(ALARMING)
    assert decision is not None
    assert (decision.state, decision.reason) == (before, "frozen: alarm:overrun_rate")
    assert parse((await leader.ops())[-1].payload)["reason"] == decision.reason


async def test_a_declared_incident_freezes_the_tempo_under_every_leader_until_it_is_cleared(
    hall: TempoMesh, leader: TempoNode
) -> None:
    await leader.bars(PRESSED, 2)
    before = state_after(parse((await leader.ops())[-1].payload))
    declared = await leader.rhythm.incidents.declare("failover")
    assert [decision.reason for decision in await leader.bars(PRESSED, 30)] == [
        "frozen: declared: failover"
    ] * 30
    await leader.rhythm.leadership.resign()
    async with hall.player("b") as other:
        assert await other.rhythm.incidents.current() == declared
        (decision,) = await other.bars(OVERRUN, 1)
        assert (decision.reason, decision.state) == ("frozen: declared: failover", before)
        assert await other.rhythm.incidents.clear() == declared
        assert (await other.until_change(PRESSED)).reason.startswith("faster")
        assert await other.controller.replayed() == []
    kinds = [op.kind for op in await leader.node.oplog.tail(1_000) if op.kind.endswith("Incident")]
    assert kinds == ["DeclareIncident", "ClearIncident"]
    with pytest.raises(NotKnown, match="no incident is declared"):
        await leader.rhythm.incidents.clear()


async def test_an_incident_declared_while_a_change_is_decided_stops_the_change(
    leader: TempoNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    incidents = leader.rhythm.incidents
    first = await incidents.declare()
    again = await incidents.declare("still going on")
    assert (again.declared_ms, again.reason) == (first.declared_ms, "still going on")

    async def read_before() -> None:
        """The controller has read before any was declared."""

    monkeypatch.setattr(incidents, "current", read_before)
    tempos = leader.rhythm.policies.announced.entries
    await leader.bars(PRESSED, 20)
    refused = [op.reason for op in await leader.ops() if not op.accepted]
    assert refused
    assert set(refused) == {"incident_declared"}
    assert (await leader.rhythm.policies.refresh(fresh=True)).entries == tempos


async def test_nothing_is_decided_where_the_policy_does_not_adapt(hall: TempoMesh) -> None:
    async with hall.player() as player:
        assert await player.bars(PRESSED, 5) == []
        assert await player.ops() == []


async def test_who_does_not_lead_decides_nothing(hall: TempoMesh, leader: TempoNode) -> None:
    before = await leader.ops()
    async with hall.player("b") as other:
        await other.rhythm.refresh()
        assert not await other.rhythm.leadership.keep(TTL_S)
        assert await other.controller.decide(other.report(PRESSED)) is None
    assert await leader.ops() == before


async def test_a_report_of_an_older_bar_decides_nothing(leader: TempoNode) -> None:
    report = leader.report(PRESSED)
    await leader.bar(CALM)
    assert await leader.controller.decide(report) is None


@pytest.mark.parametrize("changes", [{"revision": 2}, {"is_missing": True}])
async def test_a_bar_that_is_amended_or_missing_decides_nothing(
    leader: TempoNode, changes: dict[str, Any]
) -> None:
    assert await leader.controller.decide(replace(leader.report(PRESSED), **changes)) is None
    assert await leader.controller.decide(leader.report(PRESSED)) is not None


async def test_who_has_lost_the_office_without_knowing_it_changes_nothing(leader: TempoNode) -> None:
    await leader.until_change(PRESSED)
    tempos = leader.rhythm.policies.announced.entries
    lock = leader.rhythm.leadership._lock
    assert lock is not None
    await leader.node.locks.release(lock)
    with pytest.raises(StaleFence):
        await leader.controller.decide(leader.report(OVERRUN))
    op = (await leader.ops())[-1]
    assert (op.accepted, op.reason) == (0, "stale_fence")
    assert (await leader.rhythm.policies.refresh(fresh=True)).entries == tempos


async def test_a_tempo_that_was_set_by_hand_meanwhile_stands_and_is_gone_on_from(hall: TempoMesh) -> None:
    eager = {"enable": True, "hysteresis_pct": 0.0}  # it changes as soon as it wants to
    async with hall.player() as leader, hall.player("b") as other:
        await leader.rhythm.policies.set(policy_of(adaptation=eager))
        await leader.bars(CALM, 4)
        await leader.bars(PRESSED, 1)
        await leader.pass_bar()
        await other.rhythm.policies.set(policy_of(adaptation=eager, initial_bpm=20.0))
        assert await leader.controller.decide(leader.report(PRESSED)) is None
        op = (await leader.ops())[-1]
        assert (op.accepted, op.reason) == (0, "tempo_overtaken")
        await leader.bars(CALM, 4)
        assert leader.rhythm.context.entry.tempo.bpm == 20.0
        assert parse((await leader.ops())[-1].payload)["bpm"] == 20
        assert await leader.controller.replayed() == []


async def test_a_policy_that_is_set_again_begins_again_with_its_first_tempo(leader: TempoNode) -> None:
    await leader.until_change(PRESSED)
    await leader.rhythm.policies.set(policy_of())
    await leader.bars(CALM, 8)
    assert leader.rhythm.context.entry.tempo.bpm == 12.0
    assert parse((await leader.ops())[-1].payload)["before"]["bpm"] == 12


async def test_while_the_breaker_is_open_the_tempo_is_frozen_and_nothing_is_written(hall: TempoMesh) -> None:
    clock = Clock()
    breaker = Breaker(clock, faults=1, reset_timeout_s=1.0)
    async with hall.player(breaker=breaker) as player:
        await player.rhythm.policies.set(policy_of())
        await player.bars(PRESSED, 4)
        before = await player.ops()
        breaker.note(Unreachable("the line is cut"))
        decision = await player.controller.decide(player.report(OVERRUN))
        assert decision is not None
        assert (decision.reason, decision.is_change) == ("frozen: breaker open", False)
        assert decision.state == state_after(parse(before[-1].payload))
        clock.now += 2.0
        assert await player.ops() == before
