"""Views of approvals."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from vox_mesh.model.grants.approval import Approval, ApprovalRequest
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
            asks_for=act_lines(request),
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
    def texts(self) -> dict[str, object]:
        """Return all but the arguments, with lists as text."""
        texts = {"asks_for": "; ".join(self.asks_for), "jobs": "; ".join(self.jobs)}
        return {name: value for name, value in (asdict(self) | texts).items() if name != "arguments"}

    @property
    def argument_lines(self) -> list[str]:
        """Return the arguments under a heading, in ASCII: so no character of a text hides another."""
        text = json.dumps(self.arguments, indent=2, sort_keys=True)
        return ["arguments", *(f"  {line}" for line in text.splitlines())]

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


def act_lines(request: ApprovalRequest) -> list[str]:
    """Return the acts that an agent asks for, a line each."""
    try:
        return [str(each) for each in request.acts()]
    except READ_ERRORS:
        return []
