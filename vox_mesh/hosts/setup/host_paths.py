"""Which hosts are used in a project, and the files in which each of them finds skills."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

_TRACES: Final = {
    "claude": (".claude", "CLAUDE.md", ".mcp.json"),
    "codex": (".codex",),
    "gemini": (".gemini", "GEMINI.md"),
    "cursor": (".cursor", ".cursorrules"),
    "opencode": (".opencode", "opencode.json", "opencode.jsonc"),
    "copilot": (".github/copilot-instructions.md", ".github/hooks", ".github/mcp.json"),
}
"""Files and folders that a host has in the projects in which it is used."""

HOSTS: Final = tuple(_TRACES)
"""The hosts that can be set up."""

_COMMANDS: Final = {
    "claude": ("claude",),
    "codex": ("codex",),
    "gemini": ("gemini",),
    "cursor": ("cursor", "cursor-agent"),
    "opencode": ("opencode",),
    "copilot": ("copilot",),
}
_SKILL: Final = Path("skills", "vox-mesh", "SKILL.md")


def detect_hosts(project: Path) -> dict[str, str]:
    """Return the hosts that are used in a project or installed on this machine, and by what that is known."""
    return {host: trace for host in HOSTS if (trace := _trace(host, project)) is not None}


def _trace(host: str, project: Path) -> str | None:
    for name in _TRACES[host]:
        if (project / name).exists():
            return name
    commands = (shutil.which(command) for command in _COMMANDS[host])
    return next((command for command in commands if command is not None), None)


def skill_path(host: str, base: Path) -> Path:
    """Return where a host finds our skill, below a project or the folder of a user.

    All but Claude Code read the folder `.agents`, and share one file there.
    """
    return base / (".claude" if host == "claude" else ".agents") / _SKILL
