"""The ground of the rhythm by a clock that only a test moves, on a real store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.rhythm.bar_reporter import BarReporter
from vox_mesh.rhythm.context import RhythmContext, Times
from vox_mesh.rhythm.status_claims import StatusClaimWriter

BEAT_MS: Final = 5_000
BAR_MS: Final = 8 * BEAT_MS
BEGIN_MS: Final = 45_000_000 * BAR_MS
"""A downbeat, near the time at which these tests were written."""


@dataclass
class MovableClock:
    """A clock that a test moves."""

    now_ms: int = BEGIN_MS

    def to(self, bar: int, beat: int = 1, ms: int = 0) -> None:
        """Set it: to this many milliseconds after the beginning of a beat, which counts from 1, of a bar."""
        self.now_ms = BEGIN_MS + bar * BAR_MS + (beat - 1) * BEAT_MS + ms


@dataclass
class ClockedReporter:
    """A node's desk and reports by a clock of the test's own."""

    node: MeshNode
    ground: RhythmContext
    status: StatusClaimWriter
    bar_reporter: BarReporter

    async def beat(self) -> None:
        """Have the beat of now end."""
        await self.status.run_once(self.ground.beat())

    async def say(self, agent: str, task: str, state: str, **more: object) -> None:
        """Claim, and write it now."""
        self.status.claim(agent, task, state, **more)  # type: ignore[arg-type]
        await self.status.flush()


def player(node: MeshNode, hand: MovableClock, policy: TempoPolicy | None = None) -> ClockedReporter:
    """A node of the rhythm that goes by this clock alone."""
    clock = MeshClock(Dependencies(lambda: hand.now_ms, elapsed=lambda: hand.now_ms / 1_000))
    clock.name(node.identity.chain)
    policy = TempoPolicy.built_in("default") if policy is None else policy
    plan = Plan(PlanEntry.of(policy))
    ground = RhythmContext(node.store, node._writer, clock, Times(clock), node.permits, None, plan)
    return ClockedReporter(node, ground, StatusClaimWriter(ground), BarReporter(ground))
