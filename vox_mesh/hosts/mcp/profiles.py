"""Profiles: which tools a host lists. What an agent may do is decided by its grants, not by a profile."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vox_mesh.hosts.mcp.definitions import DEFINITIONS, ToolDefinition

_WORK: Final = (
    "brief",
    "lock",
    "unlock",
    "send",
    "inbox",
    "ack",
    "submit",
    "take",
    "report",
    "look",
)


class Profile(StrEnum):
    """A choice of tools."""

    WORK = "work"
    MAIL = "mail"
    READ = "read"
    OPERATOR = "operator"

    @property
    def tools(self) -> dict[str, ToolDefinition]:
        """The tools of this profile, by name."""
        return {name: DEFINITIONS[name] for name in _TOOLS[self]}

    @property
    def path(self) -> str:
        """The path at which nodes serve it."""
        return "/mcp" if self is Profile.WORK else f"/mcp/{self}"


_TOOLS: Final = {
    Profile.WORK: _WORK,
    Profile.MAIL: ("send", "inbox", "ack"),
    Profile.READ: ("brief", "look"),
    Profile.OPERATOR: (*_WORK, "resolve", "break", "pause", "budget"),
}
