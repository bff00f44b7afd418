"""Export: write the jobs of a mesh to refs of a repository. A ref that exists is kept; only claims go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, TooLarge
from vox_mesh.jobs.git.commits import (
    Claim,
    CommitStream,
    claim_commit,
    end_commit,
    manifest_commit,
    result_commit,
)
from vox_mesh.jobs.git.job_refs import JobRefs, Refusal
from vox_mesh.jobs.git.packed_refs import RefsChanged
from vox_mesh.jobs.git.repository import GitRepository, RefUpdate
from vox_mesh.jobs.git.worker_keys import WorkerKeys
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.proof.verify import MAX_BODIES
from vox_mesh.model.documents.documents import has_keys
from vox_mesh.model.jobs.git_refs import JobRef, RefKind
from vox_mesh.model.jobs.proof import Proof, faults_of, is_time_ms
from vox_mesh.model.jobs.records import HELD, Job
from vox_mesh.model.jobs.scheduled_job import has_own_manifest

_PAGE: Final = 500
_MAX_JOBS: Final = 4_000
_MAX_STREAM_BYTES: Final = 64 * 2**20
_MAX_TRIES: Final = 10
_RETRY_DELAY_S: Final = 0.02
_TIMES: Final = ("created_ms", "started_ms", "ended_ms", "lease_ms")


@dataclass
class ExportReport:
    """What an export has done."""

    jobs: int = 0
    """The jobs of the mesh."""
    created: int = 0
    deleted: int = 0
    missing_artifacts: int = 0
    """The outputs whose contents are too large, or not here: results name them by their hashes."""
    refused: list[Refusal] = field(default_factory=list)


class _Exported(NamedTuple):
    """All that is known of a job and goes into its commits."""

    job: Job
    run_at_ms: int | None
    claim: Claim | None
    proof: Proof | None
    bodies: Mapping[str, bytes]

    @property
    def weight(self) -> int:
        """Return its size in bytes in a stream, roughly."""
        return len(self.job.manifest) + _declared_size(self.proof)


class JobExporter:
    """Exports jobs. Whatever process exports a job, and however often, its commits are the same."""

    def __init__(
        self, jobs: Jobs, artifacts: Artifacts, worker_keys: WorkerKeys, repository: GitRepository
    ) -> None:
        self._jobs = jobs
        self._artifacts = artifacts
        self._keys = worker_keys
        self._repository = repository
        self._report = ExportReport()

    async def run(self) -> ExportReport:
        """Write the refs that are missing, and delete the claims that are over."""
        self._report = ExportReport()
        refs, position = JobRefs(await self._repository.refs()), 0
        waiting, size = list[_Exported](), 0
        while page := await self._jobs.queries.standing_after(position, _PAGE):
            position = page[-1].id
            self._report.jobs += len(page)
            for each in await self._read([job.job_id for job in page if self._is_due(job, refs)], refs):
                if len(waiting) == _MAX_JOBS or (waiting and size + each.weight > _MAX_STREAM_BYTES):
                    refs = await self._write(waiting, refs)
                    waiting, size = [], 0
                waiting.append(each)
                size += each.weight
        await self._write(waiting, refs)
        return self._report

    def _is_due(self, job: Job, refs: JobRefs) -> bool:
        if refs.find(job.job_id, RefKind.MANIFEST) is None:
            return True
        if job.has_ended:
            return not refs.has_ended(job.job_id)
        return job.state in HELD or bool(refs.claims(job.job_id))

    def _refuse(self, job: Job, reason: str) -> None:
        self._report.refused.append(Refusal(str(job.job_id), reason))

    # --- what is exported ------------------------------------------------------------------------

    async def _read(self, job_ids: Sequence[str], refs: JobRefs) -> list[_Exported]:
        """Read jobs, in parts if they are too large, and return the ones that can be exported."""
        if not job_ids:
            return []
        try:
            found = await self._jobs.queries.find_all(job_ids, fresh=True)
            items = await self._jobs.queries.completions(found.values(), self._keys.key_at)
        except TooLarge:
            if len(job_ids) == 1:
                raise
            middle = len(job_ids) // 2
            return await self._read(job_ids[:middle], refs) + await self._read(job_ids[middle:], refs)
        jobs = await self._genuine([job for job in found.values() if self._is_readable(job)], refs)
        proofs = await self._proofs([job for job, _ in jobs], items)
        exported: list[_Exported] = []
        for (job, run_at_ms), proof in zip(jobs, proofs, strict=True):
            if isinstance(proof, str):
                self._refuse(job, proof)
            else:
                exported.append(_Exported(job, run_at_ms, await self._claim(job, proof), proof, {}))
        return exported

    def _is_readable(self, job: Job) -> bool:
        fault = job.fault or _time_fault(job)
        fault = fault or (None if has_own_manifest(job) else "its manifest is that of another job")
        try:
            _ = job.core
        except BadValue as error:
            fault = fault or str(error)
        if fault is not None:
            self._refuse(job, fault)
        return fault is None

    async def _genuine(self, jobs: Sequence[Job], refs: JobRefs) -> list[tuple[Job, int | None]]:
        """Return the jobs that their authors scheduled, with their earliest start if they have one.

        A row proves nothing: one that was planted must not become a job of another mesh. A completed job
        needs no such check, because its worker has made it.
        """
        doubtful = [
            job
            for job in jobs
            if refs.find(job.job_id, RefKind.MANIFEST) is None
            and (not job.has_ended or job.not_before_ms > job.created_ms)
        ]
        scheduled = await self._jobs.authorship.scheduled_as(doubtful)
        ways = dict(zip((job.job_id for job in doubtful), scheduled, strict=True))
        genuine: list[tuple[Job, int | None]] = []
        for job in jobs:
            way = ways.get(job.job_id)
            if way is None and job.job_id in ways:
                self._refuse(job, "no op signed by its author schedules it")
            else:
                run_at_ms = None if way is None else way.item.get("run_at_ms")
                genuine.append((job, run_at_ms if (run_at_ms or 0) > job.created_ms else None))
        return genuine

    async def _proofs(
        self, jobs: Sequence[Job], items: Mapping[str, Mapping[str, Any]]
    ) -> list[Proof | str | None]:
        """Return the proof of each job, `None` if it has none, or what is wrong with it."""
        proofs: list[Proof | str | None] = []
        for job in jobs:
            given = items[job.job_id].get("proof") if job.job_id in items else None
            if given is None:
                proofs.append(None)
            elif not has_keys(given, Proof._fields):
                proofs.append("the op that completed it has no proof that can be read")
            else:
                proof = Proof(**given)
                faults = faults_of(proof, job_id=job.job_id, manifest=job.core)
                if not faults and not await self._keys.has_signed(proof):
                    faults = [f"{proof.envelope['worker_id']} is no key of {proof.envelope['node_id']}"]
                if not faults and proof.envelope["state"] != job.state:
                    faults = [f"it is {job.state}, and its proof says {proof.envelope['state']}"]
                proofs.append("; ".join(faults) or proof)
        return proofs

    async def _claim(self, job: Job, proof: Proof | None) -> Claim | None:
        if proof is not None:
            return Claim.of_proof(proof)
        if job.state not in HELD or job.claimer is None:
            return None
        key = await self._keys.in_force(job.claimer)
        started_ms = job.created_ms if job.started_ms is None else job.started_ms
        return None if key is None else Claim(job.job_id, job.claimer, key, job.claim_token, started_ms)

    async def _with_bodies(self, exported: Sequence[_Exported]) -> list[_Exported]:
        """Add the contents of outputs, each read once."""
        wanted = [_embedded(each.proof) for each in exported]
        hashes = dict.fromkeys(each for of_job in wanted for each in of_job)
        found = await self._artifacts.bodies(hashes, limit=MAX_BODIES)
        named = sum(len(each.proof.envelope["outputs"]) for each in exported if each.proof is not None)
        self._report.missing_artifacts += named - sum(each in found for of_job in wanted for each in of_job)
        return [each._replace(bodies=found) for each in exported]

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, exported: Sequence[_Exported], refs: JobRefs) -> JobRefs:
        """Write jobs. Return the refs, read again if others changed them."""
        exported = await self._with_bodies(exported)
        for attempt in range(1, _MAX_TRIES + 1):
            try:
                async for part in self._repository.change_refs(await self._updates(exported, refs)):
                    self._report.created += sum(each.new is not None for each in part)
                    self._report.deleted += sum(each.new is None for each in part)
            except RefsChanged:
                if attempt == _MAX_TRIES:
                    raise
                await asyncio.sleep(_RETRY_DELAY_S * attempt)
                refs = JobRefs(await self._repository.refs())
            else:
                break
        return refs

    async def _updates(self, exported: Iterable[_Exported], refs: JobRefs) -> list[RefUpdate]:
        """Write the commits that are missing, and return the changes of refs."""
        stream = CommitStream()
        created: dict[JobRef, str] = {}
        over: list[RefUpdate] = []
        for each in exported:
            self._add(each, refs, stream, created)
            over += await self._over(each, refs)
        marks = await self._repository.write_objects(stream) if len(stream) else {}
        new = [RefUpdate(ref.name, new=marks[int(mark[1:])]) for ref, mark in created.items()]
        return [*new, *over]

    def _add(
        self, exported: _Exported, refs: JobRefs, stream: CommitStream, created: dict[JobRef, str]
    ) -> None:
        job, run_at_ms, claim, proof, bodies = exported
        manifest = refs.find(job.job_id, RefKind.MANIFEST)
        if manifest is None:
            manifest = stream.add(manifest_commit(job, run_at_ms))
            created[JobRef(job.job_id, RefKind.MANIFEST)] = manifest
        if claim is not None:
            ref = JobRef(job.job_id, RefKind.CLAIM, claim.worker_id)
            if ref not in refs.claims(job.job_id):
                created[ref] = stream.add(claim_commit(claim), manifest)
        if not job.has_ended or refs.has_ended(job.job_id):
            return
        if proof is None:
            created[JobRef(job.job_id, RefKind.END)] = stream.add(end_commit(job), manifest)
        else:
            created[JobRef(job.job_id, RefKind.RESULT)] = stream.add(result_commit(proof, bodies), manifest)

    async def _over(self, exported: _Exported, refs: JobRefs) -> list[RefUpdate]:
        """Return the deletions of claims of this mesh's workers that are not held any more."""
        claims, current = refs.claims(exported.job.job_id), exported.claim
        over: list[RefUpdate] = []
        for ref, object_id in claims.items():
            is_current = current is not None and ref.worker_id == current.worker_id
            if not is_current and ref.worker_id in await self._keys.of_mesh():
                over.append(RefUpdate(ref.name, old=object_id))
        return over


def _time_fault(job: Job) -> str | None:
    """Return which column of a planted row holds no time that a commit can bear, or `None`."""
    for name in _TIMES:
        value = getattr(job, name)
        if value is not None and not is_time_ms(value):
            return f"{name} must be a time in milliseconds, got {str(value)[:32]}"
    return None


def _embedded(proof: Proof | None) -> list[str]:
    """Return the hashes of the outputs whose contents go into the commit of a result, up to a limit."""
    hashes: list[str] = []
    left = MAX_BODIES
    for output in () if proof is None else proof.envelope["outputs"]:
        if output["size"] <= left:
            hashes.append(output["hash"])
            left -= output["size"]
    return hashes


def _declared_size(proof: Proof | None) -> int:
    return 0 if proof is None else min(MAX_BODIES, sum(each["size"] for each in proof.envelope["outputs"]))
