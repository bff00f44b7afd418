"""Errors about jobs and their artifacts."""

from __future__ import annotations

from vox_mesh.errors.base import BadValue, MeshError, NotKnown


class JobNotSucceeded(MeshError):
    """A job has no result: it has failed, was aborted, or has not ended."""

    code = "job_not_succeeded"


class TakenElsewhere(MeshError):
    """A job was taken through another node, `node_id`: only that one can sign for its claim."""

    code = "taken_elsewhere"

    def __init__(self, message: str, *, node_id: str) -> None:
        super().__init__(message, hint=f"send the request to {node_id}: only the claiming node can sign")
        self.node_id = node_id


class NotAuthentic(MeshError):
    """A table says what no signed op in the log says, such as about a job or an approval."""

    code = "not_authentic"


class ArtifactMissing(NotKnown):
    """The content of an artifact is not here; `node_id` is the node that should have it, if one is known."""

    code = "artifact_missing"

    def __init__(self, message: str, *, node_id: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class ArtifactDamaged(MeshError):
    """The stored content of an artifact does not match its hash."""

    code = "artifact_damaged"


class ArtifactNotKept(MeshError):
    """An artifact could not be written: the disk is full, or the folder can't be used."""

    code = "artifact_not_kept"


class StepFailed(MeshError):
    """A durable step has failed, and has no retries left; `step` is its name."""

    code = "step_failed"

    def __init__(self, message: str, *, step: str) -> None:
        super().__init__(message, hint="see `vox-mesh job steps`")
        self.step = step


class StepTimedOut(MeshError):
    """What a durable step has waited for did not come by its deadline; `step` is its name."""

    code = "step_timed_out"

    def __init__(self, message: str, *, step: str) -> None:
        super().__init__(message, hint="catch it in the handler, or give the step a later deadline")
        self.step = step


class StepOrderChanged(MeshError):
    """A handler does not take the steps that an earlier attempt at its job has stored."""

    code = "step_order_changed"

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="keep the order of stored steps, or guard the change with context.version"
        )


class BadArguments(BadValue):
    """The arguments of a typed job do not fit the parameters of its function."""

    code = "bad_arguments"
