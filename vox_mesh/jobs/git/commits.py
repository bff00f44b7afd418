"""Commits of jobs: manifests, claims, results and ends, with ids that follow from the job alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import short_duration
from vox_mesh.model.jobs.git_refs import CLAIM_FILE, END_FILE, MANIFEST_FILE, PROOF_FILE, artifact_paths
from vox_mesh.model.jobs.proof import BLAKE3, Proof, iso_time, trailers
from vox_mesh.model.jobs.records import (
    COMMAND_ATTEMPTS,
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_INTERRUPTIONS,
    DEFAULT_PRIORITY,
    Job,
)
from vox_mesh.model.rhythm.bindings import AT_DOWNBEAT, phase_in

_PERSON: Final = "vox-mesh <vox-mesh@localhost>"
_BRANCH: Final = "refs/gatos/export"
"""The name under which fast-import makes commits; it is reset at the end, and so never written."""

_SHORT_ID: Final = 12


class JobCommit(NamedTuple):
    """A commit: its message, the time in ms that it bears, and its files by path."""

    message: str
    at_ms: int
    files: Mapping[str, bytes]


class Claim(NamedTuple):
    """A worker's claim of a job, as its proof will state it."""

    job_id: str
    node_id: str
    worker_id: str
    attempt: int
    started_ms: int

    @classmethod
    def of_proof(cls, proof: Proof) -> Claim:
        """Return the claim under which a proven attempt was made."""
        envelope = proof.envelope
        started_ms = _ms(envelope["started_at"])
        return cls(
            envelope["job_id"], envelope["node_id"], envelope["worker_id"], envelope["attempt"], started_ms
        )


def manifest_commit(job: Job, run_at_ms: int | None) -> JobCommit:
    """Return the commit of a job's manifest: its core, and how it is to be run if that is not the default."""
    core = job.core
    attempts = COMMAND_ATTEMPTS if "command" in core else DEFAULT_ATTEMPTS
    settings: dict[str, tuple[Any, bool]] = {
        "ulid": (job.ulid, True),
        "priority": (job.priority, job.priority != DEFAULT_PRIORITY),
        "max_attempts": (job.max_attempts, job.max_attempts != attempts),
        "max_interruptions": (job.max_interruptions, job.max_interruptions != DEFAULT_INTERRUPTIONS),
        "backoff": (short_duration(job.backoff_ms), job.backoff_ms != DEFAULT_BACKOFF_MS),
        "lease": (short_duration(job.lease_ms or 0), job.lease_ms is not None),
        "at": (job.binding, job.binding == AT_DOWNBEAT),
        "during": (phase := phase_in(job.binding), phase is not None),
        "run_at": (None if run_at_ms is None else iso_time(run_at_ms), run_at_ms is not None),
    }
    given = {name: value for name, (value, is_given) in settings.items() if is_given}
    return JobCommit(
        f"Job {job.job_id[:_SHORT_ID]}: {job.kind}\n\nJob-Id: {BLAKE3}{job.job_id}\n",
        job.created_ms,
        {MANIFEST_FILE: _document({**core, **given})},
    )


def claim_commit(claim: Claim) -> JobCommit:
    """Return the commit of a claim."""
    document = {**claim._asdict(), "started_at": iso_time(claim.started_ms)}
    del document["started_ms"]
    return JobCommit(
        f"Claim of job {claim.job_id[:_SHORT_ID]}\n\n"
        f"Job-Id: {BLAKE3}{claim.job_id}\nWorker-Id: {claim.worker_id}\n",
        claim.started_ms,
        {CLAIM_FILE: _document(document)},
    )


def result_commit(proof: Proof, bodies: Mapping[str, bytes]) -> JobCommit:
    """Return the commit of a result: the proof, and the contents of the outputs that are given by hash."""
    envelope = proof.envelope
    outputs = envelope["outputs"]
    files = {PROOF_FILE: proof.text.encode()}
    for path, output in zip(artifact_paths(outputs), outputs, strict=True):
        if output["hash"] in bodies:
            files[path] = bodies[output["hash"]]
    lines = "".join(f"{name}: {value}\n" for name, value in trailers(proof).items())
    message = f"Result of job {envelope['job_id'][:_SHORT_ID]}: {envelope['state']}\n\n{lines}"
    return JobCommit(message, _ms(envelope["finished_at"]), files)


def end_commit(job: Job) -> JobCommit:
    """Return the commit of an end without a proof."""
    ended_ms = job.created_ms if job.ended_ms is None else job.ended_ms
    document = {
        "ended_at": iso_time(ended_ms),
        "job_id": job.job_id,
        "reason": job.reason,
        "state": job.state,
    }
    return JobCommit(
        f"End of job {job.job_id[:_SHORT_ID]}: {job.state}\n\nJob-Id: {BLAKE3}{job.job_id}\n",
        ended_ms,
        {END_FILE: _document(document)},
    )


def _document(value: Mapping[str, Any]) -> bytes:
    return canonical(dict(value), max_depth=None).encode() + b"\n"


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000)


class CommitStream:
    """The input of `git fast-import`: commits that no ref names yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._marks = 0

    def __len__(self) -> int:
        return self._marks

    @property
    def mean_bytes(self) -> float:
        """Return the mean size of a commit and its files."""
        return sum(map(len, self._parts)) / max(1, self._marks)

    def add(self, commit: JobCommit, parent: str | None = None) -> str:
        """Add a commit, and return its name in the stream; `parent` is such a name or an object id."""
        self._marks += 1
        signature = f"{_PERSON} {commit.at_ms // 1_000} +0000"
        head = [
            *([f"reset {_BRANCH}\n"] if parent is None else []),
            f"commit {_BRANCH}\nmark :{self._marks}\nauthor {signature}\ncommitter {signature}",
        ]
        self._parts += ["\n".join(head).encode() + b"\n", _data(commit.message.encode())]
        if parent is not None:
            self._parts.append(f"from {parent}\n".encode())
        self._parts.append(b"deleteall\n")
        for path, content in commit.files.items():
            self._parts += [f"M 100644 inline {path}\n".encode(), _data(content)]
        return f":{self._marks}"

    def finish(self) -> bytes:
        """Return the whole stream."""
        return b"".join([*self._parts, f"reset {_BRANCH}\n\ndone\n".encode()])


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)
