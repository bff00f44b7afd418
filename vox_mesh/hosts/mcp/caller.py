"""The caller of a tool: for which agent it acts, and how it performs operations of the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class OperationFailed(Exception):
    """An operation that was refused or has failed; `more` has the other members of its problem document."""

    def __init__(self, code: str, detail: str, hint: str = "", more: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.more = more or {}


class ToolCaller(Protocol):
    """The client of one call. Its agent comes from its credential, never from an argument."""

    @property
    def agent(self) -> str | None:
        """The agent it acts for."""

    @property
    def now_ms(self) -> int:
        """The time of the mesh."""

    async def perform(
        self,
        operation: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> Any:
        """Perform an operation by its name in the API, and return the JSON of its answer.

        Raises `OperationFailed`. All checks of the API apply, and what the credential may not see is hidden.
        """


def agent_of(caller: ToolCaller) -> str:
    """Return the agent that a caller acts for. Raises `OperationFailed` if there is none."""
    if caller.agent is None:
        raise OperationFailed(
            "no_agent", "no agent given", "set VOX_AGENT_ID and VOX_AGENT_TOKEN for the MCP server"
        )
    return caller.agent
