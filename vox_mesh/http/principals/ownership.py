"""Ownership: things of an agent, for which it needs no grant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vox_mesh.model.grants.capability import RECEIVE, Act
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.messages.records import ROLE
from vox_mesh.runtime.services import MeshServices


async def owns_job(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent has scheduled the job of a request, or has taken it last."""
    return await has_job(mesh, agent, await mesh.jobs.find(inputs["job"]))


async def has_job(mesh: MeshServices, agent: str, job: Job) -> bool:
    """Return whether an agent has scheduled a job, or has taken it last."""
    return await mesh.work.is_held_by(agent, job) or await mesh.jobs.permitted.has_scheduled(agent, [job])


async def has_scheduled_job(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent has scheduled the job of a request."""
    return await mesh.jobs.permitted.has_scheduled(agent, [await mesh.jobs.find(inputs["job"])])


async def has_scheduled_jobs(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent has scheduled all jobs that a request names."""
    named = inputs["body"].jobs
    jobs = [await mesh.jobs.find(each) for each in named or ()]
    return bool(jobs) and await mesh.jobs.permitted.has_scheduled(agent, jobs)


async def owns_message(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent has sent the message of a request, or may receive it."""
    message = await mesh.messages.queries.get(inputs["message_uuid"])
    receiver = message.receiver_agent
    if agent in (message.sender_agent, receiver):
        return True
    return receiver.startswith(ROLE) and mesh.principals.known.may_ask_for(agent, [Act(RECEIVE, receiver)])


async def owns_approval(mesh: MeshServices, agent: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an agent has asked for the approval of a request."""
    return (await mesh.approvals.find(inputs["approval"])).request.agent == agent
