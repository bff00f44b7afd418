"""Views of job kinds and their rules."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.jobs.queries import KindRules
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class KindView:
    """What is decided of a kind, by column."""

    kind: str
    is_paused: bool
    max_running: int | None
    rate: int | None
    rate_ms: int | None
    lease_ms: int | None
    is_audited: bool

    @classmethod
    def of(cls, rules: KindRules) -> KindView:
        """Return the view of a kind's rules."""
        switches = {"is_paused": bool(rules.is_paused), "is_audited": bool(rules.is_audited)}
        return cls(**rules._asdict() | switches)


async def rules_of(mesh: MeshServices, kind: str) -> KindRules:
    """Return the rules of a kind, empty if there are none."""
    return (await mesh.jobs.roster.situation()).rules.get(kind) or KindRules(kind)
