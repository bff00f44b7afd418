"""Views of the jobs that agents have taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.jobs.proof.artifacts import Artifact
from vox_mesh.jobs.work.work import TakenJob
from vox_mesh.model.jobs.proof import Output
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class TakenView:
    """A job that an agent has taken; its node holds the claim."""

    job_id: str
    ulid: str
    kind: str
    agent: str
    node_id: str
    claim_token: int
    attempt: int
    lease_ms: int
    lease_until_ms: int
    payload: Any
    manifest: dict[str, Any]
    checkpoint: Any

    @classmethod
    def of(cls, taken: TakenJob) -> TakenView:
        """Return the view of a taken job."""
        job = taken.job
        return cls(
            job_id=job.job_id,
            ulid=job.ulid,
            kind=job.kind,
            agent=taken.agent,
            node_id=str(job.claimer),
            claim_token=job.claim_token,
            attempt=job.attempts,
            lease_ms=taken.lease_ms,
            lease_until_ms=taken.lease_until_ms,
            payload=taken.payload,
            manifest=dict(taken.core),
            checkpoint=taken.checkpoint,
        )


@dataclass(frozen=True)
class LeaseView:
    """The renewed lease of a taken job."""

    job_id: str
    claim_token: int
    lease_ms: int
    lease_until_ms: int

    @classmethod
    def of(cls, taken: TakenJob) -> LeaseView:
        """Return the view of a renewed lease."""
        return cls(taken.job.job_id, taken.claim_token, taken.lease_ms, taken.lease_until_ms)


@dataclass(frozen=True)
class KeptView(RecordView, record=Output):
    """An artifact that an agent has stored, as the proof will name it."""

    @classmethod
    def of(cls, artifact: Artifact) -> KeptView:
        """Return the view of an artifact."""
        return cls.from_record(artifact.output)
