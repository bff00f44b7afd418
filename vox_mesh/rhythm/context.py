"""The context shared by all parts of the rhythm: the store, the clock and the known tempo plan."""

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
    """State shared by all parts of the rhythm; a newly learned plan is stored here."""

    store: Store
    author: OpLogWriter
    clock: MeshClock
    times: Times
    agent: str | None
    """The agent this process acts for by default."""
    plan: Plan
    """Which policy is in force when, as known to this node."""
    newest_ms: int = -1
    """The latest announced anchor known to this node."""

    @property
    def mesh(self) -> tuple[str, str]:
        """The scope and the repository."""
        scope_id, repository_id, _ = self.store.tenant
        return scope_id, repository_id

    @property
    def node_id(self) -> str:
        """This node's id."""
        return self.author.identity.node_id

    @property
    def timeline(self) -> Timeline:
        """The timeline of beats and bars."""
        return self.plan.timeline

    @property
    def entry(self) -> PlanEntry:
        """The current policy with its current tempo."""
        return self.plan.at(self.times.now_ms)

    @property
    def policy(self) -> TempoPolicy:
        """The policy in force; the current tempo may differ from its initial one."""
        return self.entry.policy

    def beat(self, at_ms: int | None = None) -> Beat:
        """Return the beat at a time, by default now."""
        return self.timeline.beat_at(self.times.now_ms if at_ms is None else at_ms)
