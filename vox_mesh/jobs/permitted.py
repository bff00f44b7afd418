"""Jobs by permits: schedule, abort and yield them by the acting agent's grant, if it needs one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from vox_mesh.errors import NotGranted
from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.jobs.transitions import JobTransitions
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Outcome, Script

if TYPE_CHECKING:
    from vox_mesh.model.grants.capability import Act

Write = Callable[[Script], Awaitable[Outcome]]
"""Writes a script."""

Ended = TypeVar("Ended")


class PermittedJobs:
    """Schedule and end jobs for the agents of one process."""

    def __init__(
        self,
        writer: OpLogWriter,
        transitions: JobTransitions,
        permits: Permits,
        authorship: JobAuthorship,
    ) -> None:
        self._writer = writer
        self._transitions = transitions
        self._permits = permits
        self._authorship = authorship

    async def schedule(
        self, items: Sequence[Mapping[str, Any]], write: Write, *, spool: bool, defer: bool
    ) -> tuple[Script, bool]:
        """Schedule jobs by a permit, looked for again if it was out of date; return whether it is spooled."""

        async def schedule(permit: Permit) -> tuple[Script, bool]:
            script = self._transitions.schedule(items, can_spool=spool, defers=defer, permit=permit)
            return script, (await write(script)).spooled

        return await self._permits.attempt(lambda: _scheduling_acts(items), schedule)

    async def scheduling_permit(self, items: Sequence[Mapping[str, Any]]) -> Permit:
        """Return the permit of the acting agent to schedule jobs; raise `NotGranted` if it has none."""
        return await self._permits.permit(self._writer.acting_agent, lambda: _scheduling_acts(items))

    async def end(self, jobs: Sequence[Job], act: Callable[[Permit], Awaitable[Ended]]) -> Ended:
        """Abort jobs, or return them to the queue, by a permit of the acting agent.

        An agent needs no grant for jobs that it has scheduled itself.
        """
        agent = self._writer.acting_agent
        try:
            await self._permits.permit(agent, lambda: _ending_acts(jobs))
        except NotGranted:
            if await self.has_scheduled(agent, jobs):
                return await act(self._permits.without_grant(agent))
        return await self._permits.attempt(lambda: _ending_acts(jobs), act)

    async def has_scheduled(self, agent: str, jobs: Sequence[Job]) -> bool:
        """Return whether signed ops of the log say that an agent has scheduled all of these jobs."""
        for scheduled in await self._authorship.scheduled_as(jobs):
            op = None if scheduled is None else await self._authorship.ends.find_op(scheduled.op_id)
            if op is None or op.agent != agent:
                return False
        return True


def ended_item(job: Job, permit: Permit) -> dict[str, Any]:
    """Return the entry of a job in the op that ends it; by a grant, with the kind that this must name."""
    item = {"job_id": job.job_id}
    return item if permit.grant_id is None else {**item, "kind": job.kind}


def expired_item(job: Job) -> dict[str, Any]:
    """Return the entry of a job in the op that ends its lease; it says so if that ends the job."""
    item: dict[str, Any] = {"job_id": job.job_id, "claim_token": job.claim_token}
    return item if job.may_be_interrupted else {**item, "state": JobState.FAILED.value}


def _scheduling_acts(items: Sequence[Mapping[str, Any]]) -> list[Act]:
    """Return the acts for which scheduling these jobs needs a grant."""
    from vox_mesh.model.grants.needs import scheduling_acts  # imported late: few agents need grants

    return scheduling_acts((item["kind"], orjson.loads(orjson.dumps(item["manifest"]))) for item in items)


def _ending_acts(jobs: Sequence[Job]) -> list[Act]:
    """Return the acts for which ending these jobs needs a grant."""
    from vox_mesh.model.grants.needs import ending_acts  # imported late: few agents need grants

    return ending_acts(job.kind for job in jobs)
