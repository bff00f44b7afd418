"""The root of the error family, and a part of it; import all errors from `vox_mesh.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class MeshError(Exception):
    """Something a user can act on: what happened, a stable `code`, and a `hint` on what to do."""

    code: ClassVar[str] = "mesh_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def line(self) -> str:
        """The whole error on one line, as a person should read it."""
        message = " ".join(str(self).split())
        return f"{message}; {self.hint}" if self.hint else message


class BadSettings(MeshError):
    """A variable, option or argument holds a value that can't be used."""

    code = "bad_settings"


class BadValue(MeshError):
    """A value that no home could store and give back unchanged."""

    code = "bad_value"


class NotKnown(MeshError):
    """There is no such node, op or key."""

    code = "not_known"


class NotJson(BadValue):
    """A text is not JSON."""

    code = "not_json"


class BadDocument(BadValue):
    """A document is invalid. `faults` lists all that is wrong with it, one per line."""

    code = "bad_document"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class BadManifest(BadDocument):
    """A job's manifest can't be used."""

    code = "bad_manifest"


class BadWorkflow(BadDocument):
    """A workflow can't be used."""

    code = "bad_workflow"


class BadPolicy(BadDocument):
    """A tempo policy can't be used."""

    code = "bad_policy"


class BadScore(BadDocument):
    """A task's score can't be used."""

    code = "bad_score"


class BadAddress(BadValue):
    """An address can't be read. `position` is the offset of what is wrong, or the text's length: its end."""

    code = "bad_address"

    def __init__(self, message: str, *, position: int, hint: str) -> None:
        super().__init__(f"{message}, at offset {position}", hint=hint)
        self.position = position


class BadBudget(BadDocument):
    """A budget, or a file of rates, can't be used."""

    code = "bad_budget"


class UpgradeRefused(MeshError):
    """The server answers, but not over WebSocket."""

    code = "upgrade_refused"


# --- results of a script -------------------------------------------------------------------------


class ScriptFailed(MeshError):
    """The script was rolled back and has no effect. `statement` is the index of the one that failed."""

    code = "script_failed"

    def __init__(self, message: str, *, statement: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.statement = statement


class ConstraintFailed(ScriptFailed):
    """A constraint of the schema failed."""

    code = "constraint_failed"


class BadStatement(ScriptFailed):
    """The database could not run a statement: a fault in the program, not in the data."""

    code = "bad_statement"


class TooLarge(ScriptFailed):
    """A request, or the answer to it, is larger than the server allows."""

    code = "too_large"


class UnreadableText(ScriptFailed):
    """The answer would hold text that is not UTF-8, which only a hostile or faulty writer stores."""

    code = "unreadable_text"


class Refused(ScriptFailed):
    """A guard did not hold. `reason` is the guard's own code, such as `stale_fence`."""

    code = "refused"

    def __init__(self, reason: str, *, statement: int) -> None:
        super().__init__(f"refused: {reason}", statement=statement)
        self.reason = reason


class StaleFence(Refused):
    """The fencing token is stale: its lock expired or has another holder. Nothing was written."""

    code = "stale_fence"

    def __init__(self, reason: str = code, *, statement: int = 0) -> None:
        super().__init__(reason, statement=statement)
        self.hint = "acquire the lock again, and check what it protects before writing"


class StaleClaim(Refused):
    """The claim token of the job is stale or unknown: nothing was written."""

    code = "stale_claim"


class IllegalTransition(Refused):
    """The job's state does not allow it."""

    code = "illegal_transition"


class NotGranted(Refused):
    """The agent has no grant for it, or none that is in force: nothing was written."""

    code = "not_granted"


class ApprovalNeeded(NotGranted):
    """The agent's grant allows it after an approval only: nothing was written.

    `acts` are what the agent wanted to do, by the grant `grant_id`.
    """

    code = "approval_needed"

    def __init__(self, agent: str, acts: Sequence[Any], grant_id: str) -> None:
        super().__init__(self.code, statement=0)
        self.agent = agent
        self.acts = tuple(acts)
        self.grant_id = grant_id
        self.hint = f"ask the owner for a grant for {agent} that allows it without an approval"


class LimitReached(Refused):
    """A limit of the agent's grant is reached: nothing was written. `retry_in_s`: when it may be possible."""

    code = "limit_reached"
    retryable = True
    retry_in_s: float | None = None


class RateExceeded(LimitReached):
    """The agent did it as often as its grant allows within a period."""

    code = "rate_exceeded"


class TooManyOpen(LimitReached):
    """As many items of the agent are open as its grant allows."""

    code = "too_many_open"


class OverGrantBudget(LimitReached):
    """The jobs may cost more than the budget of the agent's grant has left."""

    code = "over_grant_budget"
    retryable = False


class ApprovalPending(MeshError):
    """The agent's grant allows it after an approval only, for which it has asked: nothing else was written.

    `approval_id` is what to wait for.
    """

    code = "approval_pending"

    def __init__(self, approval_id: str, agent: str, expires_at: str) -> None:
        super().__init__(
            f"approval needed: {agent} has asked for it as {approval_id}, until {expires_at}",
            hint=f"a person decides with `vox-mesh approvals show {approval_id}`; wait for it with"
            f" `vox-mesh approvals wait {approval_id}`, and do not send it again",
        )
        self.approval_id = approval_id
        self.agent = agent
        self.expires_at = expires_at


_KINDS_OF_REFUSAL: Mapping[str, type[Refused]] = {
    kind.code: kind
    for kind in (
        *(StaleFence, StaleClaim, IllegalTransition, NotGranted),
        *(RateExceeded, TooManyOpen, OverGrantBudget),
    )
}


def refused(reason: str, *, statement: int) -> Refused:
    """Return the error for a guard's reason: a subclass of `Refused` where callers distinguish it."""
    return _KINDS_OF_REFUSAL.get(reason, Refused)(reason, statement=statement)


class RowMoved(ScriptFailed):
    """The row has changed since it was read. `now` is its current content; `None` if it was deleted."""

    code = "row_moved"

    def __init__(self, message: str, *, now: Mapping[str, Any] | None, statement: int, hint: str) -> None:
        super().__init__(message, statement=statement, hint=hint)
        self.now = now


class AlreadyResolved(ScriptFailed):
    """The conflict is already resolved."""

    code = "already_resolved"


class NodeRefused(MeshError):
    """The node refused a request of its client. `problem` is the code of the refusal."""

    code = "node_refused"

    def __init__(self, message: str, *, problem: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problem = problem
