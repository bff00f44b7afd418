"""Records of the mesh, from the documents of its HTTP API.

Fields that a document does not have are empty: what only the database knows, such as the row of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.grants.approval import Approval, ApprovalRequest, ApprovalState, AskedOperation
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import Job, Scheduled
from vox_mesh.model.jobs.taken_job import TakenJob
from vox_mesh.model.locks.records import Holder, Lock, milliseconds_at
from vox_mesh.model.messages.records import Message

Document = Mapping[str, Any]


def lock_of(document: Document, now_ms: float, ttl: float | None = None) -> Lock:
    """Return a lock. Its lease is the given one, or else the rest of it at this time."""
    expires_at = str(document["expires_at"])
    left_s = max(0.0, (milliseconds_at(expires_at) - now_ms) / 1_000)
    return Lock(
        keys=tuple(document["lock_keys"]),
        fence_token=document["fence_token"],
        holder_node=document["holder_node"],
        holder_agent=document["holder_agent"],
        is_shared=document["is_shared"],
        ttl=left_s if ttl is None else ttl,
        expires_at=expires_at,
        deadline=0.0,
        request_id="",
        is_renewed=document.get("is_renewed", False),
    )


def holder_of(document: Document) -> Holder:
    """Return a held lock as everyone sees it; the token of another agent's lock, which is hidden, is 0."""
    values = {name: document.get(name) for name in Holder._fields}
    values["now_ms"] = milliseconds_at(str(document["expires_at"])) - document["left_ms"]
    values["fence_token"] = document.get("fence_token") or 0
    values["session_pid"] = 0 if document.get("session") == "heartbeats" else document.get("session_pid")
    return Holder(**{**values, "request_id": ""})  # type: ignore[arg-type]  # as its view has them


def job_of(document: Document) -> Job:
    """Return a job."""
    values: dict[str, Any] = {name: document.get(name) for name in Job._fields}
    values |= {"id": 0, "seed": ""}
    for name in ("manifest", "output_artifacts"):
        values[name] = canonical(document.get(name) or ([] if name == "output_artifacts" else {}))
    return Job(**values)


def scheduled_of(document: Document) -> Scheduled:
    """Return a job that was scheduled."""
    return Scheduled(**{name: document[name] for name in Scheduled._fields})


def taken_of(document: Document) -> TakenJob:
    """Return a job that was taken."""
    about = {**document, "claimer": document["node_id"], "attempts": document["attempt"]}
    return TakenJob(
        job=job_of(about),
        agent=document["agent"],
        lease_ms=document["lease_ms"],
        lease_until_ms=document["lease_until_ms"],
        core=document["manifest"],
        checkpoint=document.get("checkpoint"),
        answer=document.get("answer"),
    )


def asked_of(document: Document) -> AskedQuestion:
    """Return a question of a job."""
    values: dict[str, Any] = {name: document.get(name) for name in AskedQuestion._fields}
    values["question"] = canonical({name: document.get(name) for name in ("text", "choices", "schema")})
    return AskedQuestion(**values)


def approval_of(document: Document) -> Approval:
    """Return what an agent asked for, and what became of it."""
    request = ApprovalRequest(
        document["approval_id"],
        document["agent"],
        document["grant_id"],
        AskedOperation(document["operation"], canonical(document["arguments"], max_depth=None)),
        milliseconds_at(document["expires_at"]),
        document["applied_as"],
        milliseconds_at(document["asked_at"]),
    )
    decided_at = document.get("decided_at")
    return Approval(
        request,
        ApprovalState(document["state"]),
        decided_by=document.get("decided_by"),
        decided_ms=None if decided_at is None else milliseconds_at(decided_at),
        reason=document.get("reason"),
        refusal=document.get("refusal"),
    )


def message_of(document: Document) -> Message:
    """Return a message."""
    known = {name: document[name] for name in Message._fields if name in document}
    known["payload"] = canonical(document["payload"])
    return Message(**{**known, "is_ordered": int(document.get("is_ordered", True))})
