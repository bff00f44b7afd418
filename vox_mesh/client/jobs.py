"""Jobs through a node: scheduling, showing, waiting and answering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from vox_mesh.client.connection import CALL_S, NodeConnection, in_query
from vox_mesh.client.long_wait import LongWait
from vox_mesh.client.records import asked_of, job_of, scheduled_of
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import Job, Scheduled

JobName = str | Job | Scheduled
"""A job, its id, a prefix of its id, or its ULID."""


def path_of(job: JobName, rest: str = "") -> str:
    """Return the path of a job in the API."""
    name = job if isinstance(job, str) else job.job_id
    return f"/v1/jobs/{quote(name, safe='')}{rest}"


class ClientJobs:
    """Schedules jobs and waits for them."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def schedule(
        self, kind: str, payload: Any = None, *, new: bool = False, defer: bool = False, **fields: Any
    ) -> Scheduled:
        """Schedule a job of a kind; `fields` are those of a manifest."""
        manifest = {"kind": kind, "payload": payload, **fields}
        given = {name: value for name, value in manifest.items() if value is not None}
        (scheduled,) = await self.schedule_all([given], new=new, defer=defer)
        return scheduled

    async def schedule_all(
        self, manifests: Sequence[Mapping[str, Any]], *, new: bool = False, defer: bool = False
    ) -> list[Scheduled]:
        """Schedule jobs, all or none; predecessors come first in the answer."""
        body = {"manifests": [dict(each) for each in manifests], "new": new, "defer": defer}
        return [scheduled_of(each) for each in await self._connection.post("/v1/jobs", body)]

    async def find_named(self, references: Iterable[JobName]) -> list[Job]:
        """Return the jobs of these references, each once."""
        found = [await self.find(each) for each in references]
        return list({each.job_id: each for each in found}.values())

    async def show(self, job: JobName) -> dict[str, Any]:
        """Return all details of a job, as the API has them."""
        found: dict[str, Any] = await self._connection.get(path_of(job))
        return found

    async def find(self, job: JobName) -> Job:
        """Return a job; raise `NotKnown` if there is none, or several begin with this id."""
        return job_of(await self.show(job))

    async def wait(self, job: JobName, timeout: Duration | None = None) -> Job:
        """Wait until a job has ended. Raises `TimeoutError` after `timeout` seconds."""
        waiting, path = LongWait(seconds_or_none("timeout", timeout)), path_of(job, "/wait")
        while True:
            step = waiting.next_step()
            found = job_of(await self._connection.get(path, timeout_s=step + CALL_S, timeout=in_query(step)))
            if found.has_ended:
                return found
            if waiting.is_last:
                raise TimeoutError

    async def questions(self, to: str | None = None) -> list[AskedQuestion]:
        """Return the open questions, of all or to one agent, the oldest first."""
        return [asked_of(each) for each in await self._connection.get("/v1/jobs/questions", to=to)]

    async def answer(self, job: JobName, answer: Any) -> AskedQuestion:
        """Answer the question of a job, which can be taken again with the answer."""
        # An answer may be null, which `post` would omit.
        return asked_of(await self._connection.post_whole(path_of(job, "/answer"), {"answer": answer}))
