"""Import: schedule the jobs of a repository, and complete them with the results that workers have signed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final, TypeVar

from vox_mesh.errors import Refused
from vox_mesh.jobs.git.job_refs import JobRefs, Refusal
from vox_mesh.jobs.git.received import Faulty, ReceivedResult, RepositoryReader
from vox_mesh.jobs.git.repository import GitRepository
from vox_mesh.jobs.git.result_writer import ResultWriter
from vox_mesh.jobs.git.worker_keys import WorkerKeys
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.model.documents.documents import has_keys
from vox_mesh.model.jobs.git_refs import JobRef, RefKind
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import Proof
from vox_mesh.model.jobs.records import Job

_Received = TypeVar("_Received", Manifest, ReceivedResult)

_PAGE: Final = 250
_REASONS: Final = {
    "ulid_taken": "its ULID is taken by another job",
    "unknown_predecessor": "a job that it waits for is not here",
    "predecessor_failed": "a job that it waits for has not succeeded",
}


@dataclass
class ImportReport:
    """What an import has done."""

    scheduled: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    unchanged: int = 0
    """The jobs that are here already, as the repository has them."""
    skipped: int = 0
    """The jobs that are claimed or have ended elsewhere, without a result."""
    refused: list[Refusal] = field(default_factory=list)


class JobImporter:
    """Imports jobs. What it can't verify it refuses by name, and goes on."""

    def __init__(
        self, jobs: Jobs, writer: ResultWriter, worker_keys: WorkerKeys, repository: GitRepository
    ) -> None:
        self._jobs = jobs
        self._writer = writer
        self._repository = repository
        self._keys = worker_keys
        self._reader = RepositoryReader(repository, worker_keys)
        self._report = ImportReport()

    async def run(self) -> ImportReport:
        """Import the manifests and results that are not here yet."""
        self._report = ImportReport()
        refs = JobRefs(await self._repository.refs())
        for name in refs.unknown:
            self._report.refused.append(Refusal(name, "no ref of a job has such a name"))
        manifests: dict[str, Manifest] = {}
        results: dict[str, ReceivedResult] = {}
        for page in _pages(sorted(refs)):
            known = await self._jobs.queries.standing(page)
            received = await self._results(page, known, refs)
            await self._complete_known(
                {job_id: known[job_id] for job_id in received if job_id in known}, received
            )
            manifests |= await self._manifests(page, known, received, refs)
            results |= received
        for level in _levels(manifests):
            done = [job_id for job_id in level if job_id in results]
            await self._complete_new(done, manifests, results)
            await self._schedule({job_id: manifests[job_id] for job_id in level if job_id not in results})
        return self._report

    def _refuse(self, ref: JobRef, reason: str) -> None:
        self._report.refused.append(Refusal(ref.name, reason))

    # --- reading ---------------------------------------------------------------------------------

    async def _results(
        self, job_ids: Iterable[str], known: Mapping[str, Job], refs: JobRefs
    ) -> dict[str, ReceivedResult]:
        """Return the valid results of jobs that have not ended here."""
        commits = _commits(job_ids, RefKind.RESULT, refs)
        ended = await self._jobs.queries.completions(known.values(), self._keys.key_at)
        own = {
            job_id: Proof(**item["proof"]).text.encode()
            for job_id, item in ended.items()
            if has_keys(item.get("proof"), Proof._fields)
        }
        texts: dict[str, bytes] = {}
        for job_id, text in (await self._reader.proof_texts(commits)).items():
            if isinstance(text, str):
                self._refuse(JobRef(job_id, RefKind.RESULT), text)
            elif text == own.get(job_id):
                self._report.unchanged += 1
            elif job_id in known and known[job_id].has_ended:
                self._refuse(JobRef(job_id, RefKind.RESULT), f"it is {known[job_id].state} here, otherwise")
            else:
                texts[job_id] = text
        results = await self._reader.results(commits, texts)
        return self._accepted(results, RefKind.RESULT)

    async def _manifests(
        self,
        job_ids: Iterable[str],
        known: Mapping[str, Job],
        results: Mapping[str, ReceivedResult],
        refs: JobRefs,
    ) -> dict[str, Manifest]:
        """Return the valid manifests of jobs that are not here and may be run, or have a valid result."""
        wanted: list[str] = []
        for job_id in job_ids:
            if job_id in known:
                has_result = refs.find(job_id, RefKind.RESULT) is not None
                self._report.unchanged += not has_result
            elif job_id in results or not (refs.has_ended(job_id) or refs.claims(job_id)):
                wanted.append(job_id)
            elif refs.find(job_id, RefKind.RESULT) is None:
                self._report.skipped += 1
        commits = _commits(wanted, RefKind.MANIFEST, refs)
        for job_id in wanted:
            if job_id not in commits:
                self._refuse(JobRef(job_id, RefKind.MANIFEST), "it is missing")
        return self._accepted(await self._reader.manifests(commits), RefKind.MANIFEST)

    def _accepted(self, received: Mapping[str, _Received | Faulty], kind: RefKind) -> dict[str, _Received]:
        accepted: dict[str, _Received] = {}
        for job_id, each in received.items():
            if isinstance(each, str):
                self._refuse(JobRef(job_id, kind), each)
            else:
                accepted[job_id] = each
        return accepted

    # --- writing ---------------------------------------------------------------------------------

    async def _schedule(self, manifests: Mapping[str, Manifest]) -> None:
        for page in _pages([*manifests]):
            try:
                await self._jobs.schedule_all([manifests[job_id] for job_id in page], new=False)
                self._report.scheduled += page
            except Refused:  # of all, because of one
                for job_id in page:
                    await self._schedule_one(job_id, manifests[job_id])

    async def _schedule_one(self, job_id: str, manifest: Manifest) -> None:
        try:
            await self._jobs.schedule_all([manifest], new=False)
        except Refused as error:
            self._refuse(JobRef(job_id, RefKind.MANIFEST), _REASONS.get(error.reason, str(error)))
        else:
            self._report.scheduled.append(job_id)

    async def _complete_known(self, known: Mapping[str, Job], results: Mapping[str, ReceivedResult]) -> None:
        """Complete jobs that are here. One that waits for others is tried again after them."""
        left = dict(known)
        while left:
            reasons = await self._writer.complete({job_id: results[job_id] for job_id in left}, left)
            self._report.completed += [job_id for job_id in left if job_id not in reasons]
            if len(reasons) == len(left):
                for job_id, reason in reasons.items():
                    self._refuse(JobRef(job_id, RefKind.RESULT), reason)
                return
            left = await self._jobs.queries.standing(reasons)

    async def _complete_new(
        self,
        job_ids: Sequence[str],
        manifests: Mapping[str, Manifest],
        results: Mapping[str, ReceivedResult],
    ) -> None:
        """Schedule and complete jobs, each at once: no worker must claim it in between."""
        for page in _pages(job_ids):
            new = {job_id: manifests[job_id] for job_id in page}
            reasons = await self._writer.complete({job_id: results[job_id] for job_id in page}, new)
            for job_id in page:
                if job_id in reasons:
                    reason = _REASONS.get(reasons[job_id], reasons[job_id])
                    self._refuse(JobRef(job_id, RefKind.RESULT), reason)
                else:
                    self._report.completed.append(job_id)


def _pages(job_ids: Sequence[str]) -> Iterator[list[str]]:
    return (list(job_ids[start : start + _PAGE]) for start in range(0, len(job_ids), _PAGE))


def _commits(job_ids: Iterable[str], kind: RefKind, refs: JobRefs) -> dict[str, str]:
    found = {job_id: refs.find(job_id, kind) for job_id in job_ids}
    return {job_id: commit for job_id, commit in found.items() if commit is not None}


def _levels(manifests: Mapping[str, Manifest]) -> Iterator[list[str]]:
    """Yield the ids of jobs, those first that wait for none of the others."""
    sorter = TopologicalSorter(
        {
            job_id: [each.job for each in manifest.after or () if each.job in manifests]
            for job_id, manifest in manifests.items()
        }
    )
    sorter.prepare()
    while sorter.is_active():
        level = sorter.get_ready()
        yield sorted(str(job_id) for job_id in level)
        sorter.done(*level)
