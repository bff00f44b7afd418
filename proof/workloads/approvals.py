"""Approvals: an agent asks through every node, and the owner approves what it asks for."""

from __future__ import annotations

from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from vox_mesh import acting_as
from vox_mesh.errors import ApprovalPending
from vox_mesh.model.grants.approval import ApprovalState
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState

ASKER: Final = "asker"
KIND: Final = "approved.job"
"""No worker has a handler for it."""

_ASKS: Final = 0.2
_DENIES: Final = 0.2


async def run(context: WorkloadContext) -> None:
    """Ask for jobs; on the owner's node, decide on what was asked."""
    async for _ in context.rounds():
        if context.rng.random() < _ASKS:
            await _ask(context)
        with context.recorder.operation("approval.decide") as record:
            record.ok(decided=await _decide(context))


async def _ask(context: WorkloadContext) -> None:
    with context.recorder.operation("approval.ask") as record:
        try:
            with acting_as(ASKER):
                await context.mesh.jobs.schedule_all([Manifest.of(kind=KIND)], spool=False)
            record.ok()  # it is not admitted yet
        except ApprovalPending as pending:
            record.ok(approval=pending.approval_id)


async def _decide(context: WorkloadContext) -> str | None:
    mesh = context.mesh
    owner = await mesh.roles.owner()
    if owner is None or owner.node_id != mesh.identity.node_id:
        return None
    history = await mesh.grants.history()
    if history.admission(ASKER) is None:
        await mesh.grants.admit(ASKER)
    if not await mesh.grants.in_force(ASKER):
        await mesh.grants.issue(ASKER, [f"ask job.schedule kind {KIND}"])
    for each in await mesh.approvals.listed(limit=1):
        approval_id = each.request.approval_id
        if each.state is ApprovalState.APPROVED:
            continue
        if context.rng.random() < _DENIES:
            await mesh.approvals.deny(approval_id)
        else:
            await mesh.approvals.approve(approval_id)
        return approval_id
    return None


async def drain(context: WorkloadContext) -> None:
    """Let what was approved be applied, and end the jobs."""
    await settling.until(context, partial(_is_all_applied, context))
    await settling.until(context, partial(_are_all_ended, context))


async def _is_all_applied(context: WorkloadContext) -> bool:
    found = await context.mesh.approvals.listed(limit=1_000)
    return all(each.state is not ApprovalState.APPROVED for each in found)


async def _are_all_ended(context: WorkloadContext) -> bool:
    waiting = await context.mesh.jobs.queries.listed(state=JobState.PENDING, kind=KIND, limit=100)
    if waiting:
        await context.mesh.jobs.abort(*waiting)
    return not waiting


APPROVALS: Final = FunctionWorkload("approvals", run, drain)
