"""Decisions: what a host is answered, in one form for all hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HookDecision:
    """The answer to an event. The default says nothing: the host goes on as without a hook."""

    denied: str = ""
    """Why the host must not go on, for the model. Empty if it may."""

    context: str = ""
    """Facts for the model."""

    note: str = ""
    """A line for the person at the host. It never holds text of agents."""

    stays: str = ""
    """Why the agent should not stop yet, for the model."""


NOTHING = HookDecision()
