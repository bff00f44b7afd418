"""Views of tempo policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class PolicyView:
    """A policy, and the tempo that it has come to. One that is built in holds from the anchor 0."""

    policy_hash: str
    tempo_bpm: float
    beat_ms: int
    bar_len_beats: int
    phases: dict[str, int]
    policy: dict[str, Any]
    anchor_ms: int
    announced_ms: int | None
    reason: str
    op_id: str | None

    @classmethod
    def of(cls, entry: PlanEntry) -> PolicyView:
        """Return the view of a plan entry."""
        return cls(
            policy_hash=entry.policy_hash,
            tempo_bpm=entry.tempo.bpm,
            beat_ms=entry.tempo.beat_ms,
            bar_len_beats=entry.tempo.bar_len,
            phases=entry.policy.phase_beats,
            policy=entry.policy.model_dump(mode="json"),
            anchor_ms=entry.anchor_ms,
            announced_ms=entry.announced_ms if entry.op_id else None,
            reason=entry.reason if entry.op_id else "built in",
            op_id=entry.op_id or None,
        )


@dataclass(frozen=True)
class PoliciesView:
    """What is in force, and what was announced to follow it."""

    in_force: PolicyView
    announced: Sequence[PolicyView]
    now_ms: int


async def policies_of(mesh: MeshServices) -> PoliciesView:
    """Return the policies of a mesh, read from the primary."""
    plan, now_ms = await mesh.rhythm.policies.look(fresh=True), mesh.rhythm.times.now_ms
    coming = [PolicyView.of(entry) for entry in plan.entries if entry.anchor_ms > now_ms]
    return PoliciesView(PolicyView.of(plan.at(now_ms)), coming, now_ms)
