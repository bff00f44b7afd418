"""Approvals: what agents ask for, and the decisions on it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.admission import Load
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, Operations, RequestModel, Text, Wait
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import NOTHING, READS
from vox_mesh.http.principals.ownership import owns_approval
from vox_mesh.model.grants.approval import MAX_REASON
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.grants.approvals import ApprovalView

APPROVALS: Final = Operations("approvals")

_READS_OWN: Final = READS._replace(is_own=owns_approval)


class ApprovalsQuery(PageQuery):
    """Which approvals: the open ones, or all that are kept."""

    all: bool = False


@APPROVALS.get("/v1/approvals")
async def list_approvals(mesh: MeshServices, query: ApprovalsQuery) -> Page[ApprovalView]:
    """List the approvals that wait for a decision, oldest first; or all, newest first."""
    found = await mesh.approvals.listed(every=query.all, after=query.text, limit=query.limit)
    return query.page([ApprovalView.of(each) for each in found], lambda view: view.approval_id)


@APPROVALS.get("/v1/approvals/{approval}", needs=_READS_OWN)
async def show_approval(mesh: MeshServices, approval: Text) -> ApprovalView:
    """Show exactly what was asked, and what became of it."""
    return ApprovalView.of(await mesh.approvals.find(approval))


class WaitForApprovalQuery(RequestModel):
    """How long to wait."""

    timeout: Wait = 30.0

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.timeout


@APPROVALS.get("/v1/approvals/{approval}/wait", needs=_READS_OWN, takes_s=MAX_WAIT_S + CALL_S, load=Load.WAIT)
async def wait_for_approval(mesh: MeshServices, approval: Text, query: WaitForApprovalQuery) -> ApprovalView:
    """Wait until an approval is denied, applied, refused or expired, or the time is over; show it."""
    with suppress(TimeoutError):
        return ApprovalView.of(await mesh.approvals.wait(approval, timeout=query.timeout))
    return ApprovalView.of(await mesh.approvals.find(approval))


class DecisionRequest(RequestModel):
    """The reason of a decision."""

    reason: Annotated[str, Field(max_length=MAX_REASON, pattern=r"^[^\x00]*$")] = ""


@APPROVALS.post("/v1/approvals/{approval}/approve", needs=NOTHING)
async def approve(mesh: MeshServices, approval: Text, body: DecisionRequest) -> ApprovalView:
    """Approve what was asked, which is applied at once; show what became of it."""
    return ApprovalView.of(await mesh.approvals.approve(approval, body.reason))


@APPROVALS.post("/v1/approvals/{approval}/deny", needs=NOTHING)
async def deny(mesh: MeshServices, approval: Text, body: DecisionRequest) -> ApprovalView:
    """Deny what was asked."""
    return ApprovalView.of(await mesh.approvals.deny(approval, body.reason))
