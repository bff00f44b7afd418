"""Views of the jobs that agents have taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.jobs.proof.artifacts import Artifact
from vox_mesh.jobs.questions import AskedQuestion
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
    answer: Any

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
            answer=taken.answer,
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


@dataclass(frozen=True)
class AskedView:
    """A question of a job; `answered_by` is `None` while it is open."""

    job_id: str
    question_id: str
    asked_by: str
    asked_of: str | None
    asked_ms: int
    expires_ms: int | None
    escalate_to: str | None
    escalate_ms: int | None
    text: str
    choices: list[str]
    schema: Any
    answered_by: str | None

    @classmethod
    def of(cls, asked: AskedQuestion) -> AskedView:
        """Return the view of a question."""
        document = asked.document
        return cls(
            job_id=asked.job_id,
            question_id=asked.question_id,
            asked_by=asked.asked_by,
            asked_of=asked.asked_of,
            asked_ms=asked.asked_ms,
            expires_ms=asked.expires_ms,
            escalate_to=asked.escalate_to,
            escalate_ms=asked.escalate_ms,
            text=str(document.get("text", "")),
            choices=[str(each) for each in document.get("choices") or ()],
            schema=document.get("schema"),
            answered_by=asked.answered_by,
        )
