"""Verification: check a job's proof against the op log, the job's row and the artifacts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vox_mesh.errors import ArtifactMissing, BadValue, MeshError, NotKnown
from vox_mesh.jobs.proof.artifacts import MAX_INLINE, Artifacts
from vox_mesh.jobs.proof.brief_proof import WORKER, Completer, with_whole_proof
from vox_mesh.jobs.proof.job_log import JobLog
from vox_mesh.model.base.canonical import canonical, content_id, parse
from vox_mesh.model.documents.documents import has_keys, short
from vox_mesh.model.jobs.bundle import bundle
from vox_mesh.model.jobs.proof import IMPORTED, Output, Proof, attestation_remarks, faults_of
from vox_mesh.model.jobs.records import COMPLETE, Job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import key_at

MAX_BODIES: Final = 16 * 2**20
"""The maximum bytes of contents in a bundle; further outputs are only named by their hash."""


class Verification(NamedTuple):
    """The faults of a job's proof, and remarks for readers who rely on it."""

    faults: list[str]
    remarks: list[str]
    proof: Proof | None = None
    """The proof, if there is one; it is worthless if there are faults."""


class Verifier:
    """Checks proofs within a mesh, and exports them for checks outside of it."""

    def __init__(self, log: JobLog, artifacts: Artifacts) -> None:
        self._log = log
        self._artifacts = artifacts

    async def check(self, job: Job) -> Verification:
        """Check the proof of a job, and return its faults and remarks."""
        faults = _manifest_faults(job) or await self._schedule_faults(job)
        if not job.has_ended:
            return Verification([*faults, f"it is {job.state}: there is no proof before its end"], [])
        try:
            entry = await self._log.find(job.last_op)
        except NotKnown:
            return Verification([*faults, f"the op {short(job.last_op)} that ended it is not in the log"], [])
        faults += await self._entry_faults(entry)
        item = _item_of(entry, job.job_id)
        if item is None:
            ended_by = f"{entry.kind} {entry.op_id} of {entry.node_id}"
            return Verification([*faults, f"there is no proof: it was ended by {ended_by}"], [])
        faults += await self._route_faults(job, entry, item)
        item = await self._with_whole_proof(entry, item)
        given: Any = item.get("proof")
        if not has_keys(given, Proof._fields):
            return Verification([*faults, f"the op {entry.op_id} that completed it has no proof"], [])
        proof = Proof(**given)
        wrong = await self._proof_faults(job, entry, item, proof)
        if wrong:
            return Verification([*faults, *wrong], [], proof)
        damaged, remarks = await self._outputs(proof)
        remarks += attestation_remarks(proof.envelope, _core_of(job) or {})
        return Verification([*faults, *damaged], remarks, proof)

    async def _with_whole_proof(self, entry: LogEntry, item: Mapping[str, Any]) -> Mapping[str, Any]:
        worker = parse(entry.payload).get(WORKER)
        if worker is None:
            return item
        key = key_at(entry.seq, await self._log.trusted_keys(entry.node_id))
        return with_whole_proof(item, Completer(entry.author, key, worker))

    async def _schedule_faults(self, job: Job) -> list[str]:
        if await self._log.is_scheduled(job):
            return []
        return [f"no op signed by {short(job.scheduled_by)} schedules it as the table of jobs has it"]

    async def _route_faults(self, job: Job, entry: LogEntry, item: Mapping[str, Any]) -> list[str]:
        token = item.get("claim_token")
        routed_to = await self._log.barred_from(job.kind, entry, job.job_id, token)
        if routed_to is None:
            return []
        return [f"{entry.node_id} was not allowed to claim it: {job.kind} was routed to {routed_to}"]

    async def _entry_faults(self, entry: LogEntry) -> list[str]:
        faults = []
        if entry.accepted != 1:
            faults.append(f"the op {entry.op_id} that ended it was refused: {short(entry.reason)}")
        if await self._log.has_changed_verdict(entry):
            faults.append(
                f"the verdict on op {entry.op_id}, or on one near it, was changed after"
                f" {short(entry.node_id)} sealed it: see `vox-mesh oplog verify`"
            )
        if not await self._log.is_authentic(entry):
            faults.append(
                f"the entry of op {entry.op_id} was changed, or is not by {short(entry.node_id)}:"
                " see `vox-mesh oplog verify`"
            )
        return faults

    async def _proof_faults(
        self, job: Job, entry: LogEntry, item: Mapping[str, Any], proof: Proof
    ) -> list[str]:
        if item.get(IMPORTED) is True:
            return await self._imported_faults(job, item, proof)
        key = key_at(entry.seq, await self._log.trusted_keys(entry.node_id))
        faults = [] if key is not None else [f"no key is known of the node {short(entry.node_id)}"]
        faults += faults_of(proof, job_id=job.job_id, worker_key=key, manifest=_core_of(job))
        if not faults:
            faults += _contradictions("the op", proof.envelope, {**item, "node_id": entry.author})
            faults += _contradictions("the table of jobs", proof.envelope, _row_of(job))
        return faults

    async def _imported_faults(self, job: Job, item: Mapping[str, Any], proof: Proof) -> list[str]:
        """Return the faults of a proof from another mesh, where the job had another claim."""
        faults = faults_of(proof, job_id=job.job_id, manifest=_core_of(job))
        if faults:
            return faults
        node_id, worker_id = proof.envelope["node_id"], proof.envelope["worker_id"]
        keys = await self._log.trusted_keys(node_id)
        if worker_id not in {key.public_key for key in keys}:
            faults.append(f"{worker_id} is no key of the worker {short(node_id)}")
        for source, values in (("the op", item), ("the table of jobs", _row_of(job))):
            faults += _contradictions(source, proof.envelope, values, _IMPORTED_COLUMNS)
        return faults

    # --- outputs ---------------------------------------------------------------------------------

    async def _outputs(self, proof: Proof) -> tuple[list[str], list[str]]:
        faults, remarks = [], []
        for output in map(_output, proof.envelope["outputs"]):
            try:
                size = await self._size(output)
            except ArtifactMissing as missing:
                remarks.append(f"{output.name}: {missing}")
            except MeshError as damaged:
                faults.append(f"{output.name}: {damaged}")
            else:
                if size != output.size:
                    faults.append(f"{output.name}: it has {size} bytes, and the proof says {output.size}")
        return faults, remarks

    async def _size(self, output: Output) -> int:
        """Return the size of an output's content, whose hash is verified on the way."""
        if output.size <= MAX_INLINE:
            return len(await self._artifacts.body(output.hash))
        path = await self._artifacts.path(output.hash)
        return (await asyncio.to_thread(path.stat)).st_size

    # --- export ----------------------------------------------------------------------------------

    async def bundle(self, job: Job, proof: Proof) -> str:
        """Return a document to check a proof offline, with the output contents that are available."""
        bodies: dict[str, bytes] = {}
        left = MAX_BODIES
        for output in map(_output, proof.envelope["outputs"]):
            if output.hash in bodies or output.size > left:
                continue
            try:
                bodies[output.hash] = await self._artifacts.body(output.hash, limit=left)
            except ArtifactMissing:
                continue
            left -= len(bodies[output.hash])
        return bundle(job.core, proof, bodies)


def _output(document: Mapping[str, Any]) -> Output:
    return Output(**document)


def _manifest_faults(job: Job) -> list[str]:
    try:
        actual = content_id(parse(job.manifest))
    except BadValue as error:
        return [f"its manifest can't be read: {error}"]
    return [] if actual == job.job_id else [f"its manifest is that of job {actual}"]


def _core_of(job: Job) -> Mapping[str, Any] | None:
    """Return the core of a job's manifest, or `None` if it is not the one that was scheduled."""
    try:
        return None if _manifest_faults(job) else job.core
    except BadValue:  # it is no object
        return None


def _item_of(entry: LogEntry, job_id: str) -> Mapping[str, Any] | None:
    """Return the entry of this job in an op that completes jobs, or `None`."""
    try:
        items = parse(entry.payload)["jobs"] if entry.kind == COMPLETE else []
        found: Mapping[str, Any] | None = next((item for item in items if item["job_id"] == job_id), None)
    except (BadValue, KeyError, TypeError):
        return None
    return found if isinstance(found, Mapping) else None


def _row_of(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {**job._asdict(), "node_id": job.claimer}
    with suppress(BadValue):  # unparsed, it differs from any output list
        row["output_artifacts"] = parse(job.output_artifacts)
    return row


_ENVELOPE_COLUMNS: Final = {
    "node_id": "node_id",
    "attempt": "claim_token",
    "state": "state",
    "exit": "exit_code",
    "outputs": "output_artifacts",
}
"""The fields of an envelope and their names in ops and rows."""


_IMPORTED_COLUMNS: Final = {
    name: column for name, column in _ENVELOPE_COLUMNS.items() if name not in ("node_id", "attempt")
}
"""Without the claim, which is that of the process that imported the result."""


def _contradictions(
    source: str,
    envelope: Mapping[str, Any],
    values: Mapping[str, Any],
    columns: Mapping[str, str] = _ENVELOPE_COLUMNS,
) -> list[str]:
    return [
        f"{source} says {column} {short(values.get(column))}, and the proof {short(envelope[name])}"
        for name, column in columns.items()
        if not _is_same(envelope[name], values.get(column))
    ]


def _is_same(one: Any, other: Any) -> bool:
    try:
        return canonical(one, max_depth=None) == canonical(
            other, max_depth=None
        )  # in which true and 1 differ
    except BadValue:
        return False
