"""Results of predecessors: what a job is given of those it waited for, as signed ops have it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import BadValue, JobNotSucceeded, NotAuthentic, NotKnown
from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.results import ReadArtifact, read_signed_result
from vox_mesh.model.jobs.job_end import JobEnd
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.jobs.scheduled_job import has_own_manifest
from vox_mesh.model.jobs.scheduling.workflow_run import bind, bindings_of, name_in_workflow

MAX_BYTES: Final = 64 * 2**20
"""How many bytes the results of predecessors may take that are read together."""

_MAX_RETRIES: Final = 100


class PredecessorResults:
    """Reads the results of predecessors. A retry has the predecessors of the job that it retries."""

    def __init__(self, queries: JobQueries, authorship: JobAuthorship, read_artifact: ReadArtifact) -> None:
        self._queries = queries
        self._authorship = authorship
        self._read_artifact = read_artifact

    async def read(self, job: Job) -> dict[str, Any]:
        """Return the results of the predecessors that have succeeded, by name in a workflow or by id.

        Raises `NotAuthentic` if a row says more than the ops that scheduled and ended its job, and `BadValue`
        if they take more than `MAX_BYTES` together: `each` yields them one by one.
        """
        size = 0

        async def read(content_hash: str) -> bytes:
            nonlocal size
            body = await self._read_artifact(content_hash)
            size += len(body)
            if size > MAX_BYTES:
                raise BadValue(
                    f"the results of predecessors must take at most {MAX_BYTES} bytes together",
                    hint="read them one by one: async for name, result in context.each_result()",
                )
            return body

        return {name: result async for name, result in self.each(job, read)}

    async def each(self, job: Job, read: ReadArtifact | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Yield the names and results that `read` returns, one by one."""
        ids = await self._ids_by_name(job)
        names: dict[str, list[str]] = {}
        for name, job_id in ids.items():
            names.setdefault(job_id, []).append(name)
        async for found in self._queries.pages(names, fresh=True):
            ends = await self._authorship.ends.find(found)
            for job_id, predecessor in found.items():
                end = ends.get(job_id)
                if (predecessor if end is None else end).state == JobState.SUCCEEDED:
                    result = await self._signed_result(predecessor, end, read)
                    for name in names[job_id]:
                        yield name_in_workflow(predecessor.core) or name, result

    async def bind(self, job: Job) -> Mapping[str, Any]:
        """Return the core of a job with the outputs of its predecessors where its bindings say.

        Raises `BadValue` if a binding names a job that is no predecessor, and `NotAuthentic` if the table of
        jobs says more about one than signed ops do.
        """
        core = job.core
        bindings = bindings_of(core)
        if not bindings:
            return core
        ids = await self._ids_by_name(job)
        outputs: dict[str, Any] = {}
        for ulid in dict.fromkeys(name for each in bindings for name in each.jobs):
            named = await self._find_scheduled(ulid)
            if named.job_id not in ids:
                raise BadValue(f"the output of job {ulid} can't be used: it is no predecessor")
            predecessor = named
            if ids[named.job_id] != named.job_id:
                predecessor = await self._queries.find(ids[named.job_id], fresh=True)
            ends = await self._authorship.ends.find([predecessor.job_id])
            outputs[ulid] = await self._signed_result(predecessor, ends.get(predecessor.job_id))
        return bind(core, {each.path: each.value(outputs) for each in bindings})

    async def _find_scheduled(self, ulid: str) -> Job:
        """Return the job with this ULID, if its author has scheduled it under it."""
        job = await self._queries.find(ulid, fresh=True)
        if not await self._authorship.is_scheduled(job):
            raise NotAuthentic(f"no op signed by its author schedules job {job.job_id} as the table has it")
        return job

    async def result_of(self, job: Job, read: ReadArtifact | None = None) -> Any:
        """Return the result of one job that has succeeded. Raises `NotAuthentic` if no signed op says so."""
        ends = await self._authorship.ends.find([job.job_id])
        return await self._signed_result(job, ends.get(job.job_id), read)

    async def _signed_result(self, job: Job, end: JobEnd | None, read: ReadArtifact | None = None) -> Any:
        if end is None:
            raise NotAuthentic(f"no signed op has ended job {job.job_id} as the table has it")
        if end.state is not JobState.SUCCEEDED:
            raise JobNotSucceeded(f"job {job.job_id} is {end.state}")
        _refuse_changed(job)
        return await read_signed_result(job.core, end, read or self._read_artifact)

    async def conditions_named_by(self, job: Job) -> dict[str, str]:
        """Return by id what a job, or the one of which it is a retry, awaits of its predecessors."""
        with suppress(NotKnown):  # a removed job, which may have had none
            first = (await self._lineage(job))[-1]
            after = Manifest.of_core(first.core).after or ()
            return {each.job: each.when.value for each in after if each.job is not None}
        return {}

    # --- retries ---------------------------------------------------------------------------------

    async def _ids_by_name(self, job: Job) -> dict[str, str]:
        """Return the predecessors of a job, by the ids that its manifest names.

        A predecessor that was retried, too, is replaced by the retry for which the job has waited.
        """
        *retries, first = await self._lineage(job)
        ids = {name: name for name in _named_in(first.core)}
        if not ids or not retries:
            return ids
        conditions = await self._authorship.conditions_of(retries)
        for retry in reversed(retries):
            if retry.job_id not in conditions:
                raise NotAuthentic(f"the predecessors of job {retry.job_id} can't be read in a signed op")
            awaited = [each.predecessor for each in conditions[retry.job_id] if not each.is_op]
            retried: dict[str, str] = {}
            async for page in self._queries.pages(awaited, fresh=True):
                for later in page.values():
                    _refuse_changed(later)
                    retried |= {each.job_id: later.job_id for each in await self._lineage(later)}
            ids = {name: retried.get(job_id, job_id) for name, job_id in ids.items()}
        return ids

    async def _lineage(self, job: Job) -> list[Job]:
        """Return a job, the one that it retries, and so on: each manifest names the hash of the next one."""
        lineage = [job]
        while (retry_of := lineage[-1].core.get("retry_of")) is not None:
            if len(lineage) > _MAX_RETRIES:
                raise BadValue(
                    f"predecessors are found through at most {_MAX_RETRIES} retries",
                    hint="schedule a new job",
                )
            earlier = (await self._queries.find_all([retry_of], fresh=True)).get(retry_of)
            if earlier is None:
                raise NotKnown(
                    f"job {retry_of}, which is retried, was removed with the names of its predecessors",
                    hint="schedule a new job",
                )
            _refuse_changed(earlier)
            lineage.append(earlier)
        return lineage


def _named_in(core: Mapping[str, Any]) -> Sequence[str]:
    after = core.get("after") or ()
    names = (each if isinstance(each, str) else each.get("job") for each in after)
    return [name for name in names if name is not None]


def _refuse_changed(job: Job) -> None:
    if not has_own_manifest(job):
        raise NotAuthentic(f"the manifest of job {job.job_id} was changed")
