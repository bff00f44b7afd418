"""What all parts of the rhythm stand on: the store, the clock, and the tempos that are known here."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import Beat, Timeline
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.tempo.times import Times
from vox_mesh.store.store import Store


@dataclass(slots=True)
class RhythmContext:
    """Shared by all parts; whoever learns of a new tempo puts it here."""

    store: Store
    author: OpLogWriter
    clock: MeshClock
    times: Times
    agent: str | None
    """On whose behalf this process acts, if nobody else is named."""
    plan: Plan
    """Which policy holds when, as far as it is known here."""
    newest_ms: int = -1
    """The last anchor that was announced, as far as it is known here."""

    @property
    def mesh(self) -> tuple[str, str]:
        """Scope and repository."""
        scope_id, repository_id, _ = self.store.tenant
        return scope_id, repository_id

    @property
    def node_id(self) -> str:
        """Who this is in the mesh."""
        return self.author.identity.node_id

    @property
    def timeline(self) -> Timeline:
        """Where the beats lie."""
        return self.plan.timeline

    @property
    def entry(self) -> PlanEntry:
        """What holds now: the policy, and the tempo that it has come to."""
        return self.plan.at(self.times.now_ms)

    @property
    def policy(self) -> TempoPolicy:
        """The policy in force; the tempo may be another than its first one."""
        return self.entry.policy

    def beat(self, at_ms: int | None = None) -> Beat:
        """The beat of a moment, or of now."""
        return self.timeline.beat_at(self.times.now_ms if at_ms is None else at_ms)
