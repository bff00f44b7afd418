"""Views of approvals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.model.grants.approval import Approval
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.oplog.verification import READ_ERRORS


@dataclass(frozen=True)
class ApprovalView:
    """What an agent asked for, exactly, and what became of it.

    `asks_for` are the acts that it needs the approval for. `jobs` are the jobs that the operation names.
    """

    approval_id: str
    state: str
    agent: str
    grant_id: str
    operation: str
    arguments: Any
    asks_for: list[str]
    digest: str
    asked_at: str
    expires_at: str
    decided_by: str | None
    decided_at: str | None
    reason: str | None
    refusal: str | None
    applied_as: str
    jobs: list[str]

    @classmethod
    def of(cls, approval: Approval) -> ApprovalView:
        """Return the view of an approval."""
        request = approval.request
        return cls(
            approval_id=request.approval_id,
            state=approval.state.value,
            agent=request.agent,
            grant_id=request.grant_id,
            operation=request.operation.name,
            arguments=request.operation.values,
            asks_for=_acts(approval),
            digest=request.operation.digest,
            asked_at=iso_of(request.asked_ms),
            expires_at=iso_of(request.expires_ms),
            decided_by=approval.decided_by,
            decided_at=None if approval.decided_ms is None else iso_of(approval.decided_ms),
            reason=approval.reason or None,
            refusal=approval.refusal,
            applied_as=request.applied_as,
            jobs=approval.jobs,
        )

    @property
    def line(self) -> dict[str, object]:
        """Return the row of a table."""
        return {
            "approval_id": self.approval_id,
            "state": self.state,
            "agent": self.agent,
            "asks_for": "; ".join(self.asks_for),
            "expires_at": self.expires_at,
            "decided_by": self.decided_by,
        }


def _acts(approval: Approval) -> list[str]:
    try:
        return [str(each) for each in approval.request.acts()]
    except READ_ERRORS:
        return []
