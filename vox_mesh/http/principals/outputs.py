"""Outputs of jobs: which an agent may read without `mesh.read`. They can't be redacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.http.principals.ownership import has_job
from vox_mesh.http.problems import Problem
from vox_mesh.model.grants.capability import EXECUTE, READ, SCHEDULE, TAKE, Act
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import MAX_AFTER
from vox_mesh.model.jobs.records import EXEC
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import current_principal


async def reads_outputs(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent may read the outputs of the job of a request.

    It may if its grants name the kind, if it has scheduled the job or taken it last, or while it holds a job
    that waited for it.
    """
    job = await mesh.jobs.find(inputs["job"])
    return (
        mesh.principals.known.allows_any(agent, _acts_on(job.kind))
        or await has_job(mesh, agent, job)
        or await mesh.work.holds_successor(agent, job)
    )


def _acts_on(kind: str) -> tuple[Act, Act]:
    return Act(TAKE, kind), Act(EXECUTE) if kind == EXEC else Act(SCHEDULE, kind)


async def refuse_unread_predecessors(mesh: MeshServices, manifests: Sequence[Manifest]) -> None:
    """Raise 403 if jobs would be given outputs of jobs that the principal which schedules them can't read."""
    agent, known = current_principal(), mesh.principals.known
    if agent is None or not known.needs_grant(agent) or known.allows_any(agent, (Act(READ),)):
        return
    own = {manifest.ulid for manifest in manifests}
    named = {each.job for manifest in manifests for each in manifest.after or () if each.job is not None}
    if len(named) > MAX_AFTER:
        raise BadValue(
            f"predecessors of jobs must be at most {MAX_AFTER} without `{READ}`, got {len(named)}",
            hint="schedule the jobs in parts",
        )
    for name in sorted(named - own):
        if not await _may_read(mesh, agent, name):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "not_granted",
                f"no grant of {agent} in force allows `{READ}`, which waiting for job {name} needs",
                f"wait for jobs of its own, or of kinds that a grant of {agent} names",
                reason="not_granted",
            )


async def _may_read(mesh: MeshServices, agent: str, name: str) -> bool:
    try:
        return await reads_outputs(mesh, agent, {"job": name})
    except (NotKnown, BadValue):
        return False  # also of jobs that will be scheduled later
