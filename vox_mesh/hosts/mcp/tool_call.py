"""A call of a tool: its arguments, its caller, and the fences for text of other agents."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from vox_mesh.hosts.mcp.caller import ToolCaller, agent_of
from vox_mesh.model.messages.fence import fence

Tool = Callable[["ToolCall"], Awaitable[dict[str, Any]]]
"""Does what a tool is for, and returns its answer."""

SHORT: Final = 2_000
"""The characters of a text of another agent in a short answer."""

LONG: Final = 60_000
"""The characters of a text of another agent in a full answer."""


@dataclass(frozen=True)
class ToolCall:
    """One call."""

    caller: ToolCaller
    arguments: Mapping[str, Any]
    boundary: Callable[[], str] = lambda: secrets.token_hex(6)

    @property
    def agent(self) -> str:
        """The agent that calls. Raises `OperationFailed` if there is none."""
        return agent_of(self.caller)

    @property
    def is_full(self) -> bool:
        """Whether everything is asked for."""
        return bool(self.arguments.get("full"))

    def given(self, **names: str) -> dict[str, Any]:
        """Return the given arguments by the names that an operation has for them."""
        return {ours: self.arguments[name] for ours, name in names.items() if name in self.arguments}

    def fence(self, value: Any, *, author: str, signature_state: str = "absent") -> str:
        """Return a value of another agent as fenced text; a long one is cut, and says so."""
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        most = LONG if self.is_full else SHORT
        if len(text) > most:
            left = len(text) - most
            text = f"{text[:most]}\n[{left} characters left out{'' if self.is_full else '; full=true'}]"
        return fence(text, author=author, signature_state=signature_state, boundary=self.boundary())
