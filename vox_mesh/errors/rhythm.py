"""Errors about the rhythm: phrases, their help threads and budgets."""

from __future__ import annotations

from vox_mesh.errors.base import MeshError


class ThreadClosed(MeshError):
    """The help thread is closed. `state` is its final state; `on_fail` is what to do instead."""

    code = "thread_closed"

    def __init__(self, message: str, *, state: str, on_fail: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state, self.on_fail = state, on_fail


class NotHelper(MeshError):
    """The sender is not the agent that promised help in this thread."""

    code = "not_helper"


class WaitExhausted(MeshError):
    """A phrase has used up its wait budget. `fallback` is what its score says to do instead."""

    code = "wait_exhausted"

    def __init__(self, message: str, *, budget: str, fallback: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.budget, self.fallback = budget, fallback


class PhaseOverrun(MeshError):
    """A phase has used up its beats."""

    code = "phase_overrun"

    def __init__(self, message: str, *, phase: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.phase = phase


class PhraseDeferred(PhaseOverrun):
    """A phase has used up its beats, and the task continues in another phrase."""

    code = "phrase_deferred"
    retryable = True


class OverBudget(MeshError):
    """The work has used up its budget."""

    code = "over_budget"
