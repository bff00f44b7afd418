"""What an agent has done: its last message, why it stopped, and the tokens it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

MAX_MESSAGE: Final = 64 * 1024
"""The maximum length of the last message; its end is kept."""


@dataclass(frozen=True)
class ReportedTokens:
    """The tokens that an agent reports for a turn."""

    input_tokens: int
    output_tokens: int


@dataclass
class LastMessage:
    """The end of what an agent says, from its last tool call on."""

    text: str = ""
    is_over: bool = False

    def add(self, piece: str) -> None:
        """Add a piece; after a tool call a new message begins."""
        self.text = (piece if self.is_over else self.text + piece)[-MAX_MESSAGE:]
        self.is_over = False

    def end(self) -> None:
        """Note that the next piece begins a new message."""
        self.is_over = True


@dataclass(frozen=True)
class AgentOutcome:
    """The end of a turn."""

    message: str
    stop_reason: str
    tokens: ReportedTokens | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """More for the result of the job, such as the name and version that the agent gives."""
