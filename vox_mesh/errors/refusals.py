"""Refusals: a guard did not hold when a script was committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vox_mesh.errors.scripts import ScriptFailed


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
