"""The state of an agent: whether it is alive, by when and where it was last seen."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class AgentState(StrEnum):
    """The state of an agent; `quiet` is one that may be thinking, or may have ended."""

    ALIVE = "alive"
    QUIET = "quiet"
    GONE = "gone"


ALIVE_MS: Final = 5 * 60_000
"""How long an agent counts as alive after it was seen."""

QUIET_MS: Final = 60 * 60_000
"""How long an agent counts as quiet after it was seen; then it is gone, unless it holds a lock."""


def agent_state(
    silent_ms: int, *, is_on_live_node: bool, is_with_dead_node: bool, is_busy: bool
) -> AgentState:
    """Return the state of an agent.

    `is_on_live_node`: a live node reports it as its own. `is_with_dead_node`: it lived in the process of a
    node that is gone. `is_busy`: it waits in a queue now, which its process confirms all the time, or holds a
    lock.
    """
    if is_on_live_node:
        return AgentState.ALIVE
    if is_with_dead_node:
        return AgentState.GONE
    if silent_ms <= ALIVE_MS:
        return AgentState.ALIVE
    return AgentState.QUIET if is_busy or silent_ms <= QUIET_MS else AgentState.GONE
