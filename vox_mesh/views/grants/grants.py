"""Views of grants."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.model.grants.history import GrantRecord
from vox_mesh.model.locks.records import iso_of
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class GrantView:
    """A grant: which agent has it, what it allows, and until when; `None`: the implicit grant."""

    grant_id: str | None
    agent: str
    capabilities: list[str]
    parent_id: str | None = None
    valid_from: str | None = None
    valid_until: str | None = None
    budget: int | None = None
    delegations: int = 0
    is_revoked: bool = False

    @classmethod
    def of(cls, record: GrantRecord) -> GrantView:
        """Return the view of a grant in the log."""
        grant = record.grant
        terms = grant.terms
        return cls(
            grant.grant_id,
            grant.agent,
            [str(each) for each in terms.capabilities],
            grant.parent_id,
            iso_of(terms.from_ms),
            None if terms.until_ms is None else iso_of(terms.until_ms),
            terms.budget,
            terms.delegations,
            record.is_revoked,
        )

    @property
    def texts(self) -> dict[str, str]:
        """Return the capabilities as one text, for people."""
        return {"capabilities": "; ".join(self.capabilities)}

    @property
    def line(self) -> dict[str, object]:
        """Return the row of a table."""
        return {
            "grant_id": self.grant_id or "implicit",
            "agent": self.agent,
            "allows": self.texts["capabilities"],
            "until": self.valid_until,
            "from": self.parent_id or "owner",
        }


@dataclass(frozen=True)
class GrantChangeView:
    """What was changed, by this op."""

    op_id: str
    change: str


@dataclass(frozen=True)
class GrantCheckView:
    """Whether an agent may do something, by which grant, or why not."""

    is_allowed: bool
    grant_id: str | None
    reason: str


async def grants_of(mesh: MeshServices, agent: str | None = None) -> list[GrantView]:
    """Return the grants in force, of one agent or of all, with the implicit one."""
    history = await mesh.grants.history()
    found = [GrantView.of(each) for each in await mesh.grants.in_force(agent)]
    is_implicit = not history.is_strict() and (agent is None or history.admission(agent) is None)
    implicit = GrantView(None, "all that are not admitted", ["can *"])
    return [implicit, *found] if is_implicit else found
