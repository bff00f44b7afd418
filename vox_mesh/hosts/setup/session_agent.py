"""The agent of the session that runs a command: hosts mark their shells, and a setup has named the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vox_mesh.hosts.setup.mcp_entry import configured_agent

_MARKS: Final = {
    "CLAUDECODE": "claude",
    "CODEX_THREAD_ID": "codex",
    "GEMINI_CLI": "gemini",
    "CURSOR_AGENT": "cursor",
    "OPENCODE": "opencode",
}


def session_agent(environment: Mapping[str, str], project: Path) -> str | None:
    """Return the agent that the host of this shell is set up with, or `None` outside of such shells."""
    for mark, host in _MARKS.items():
        if environment.get(mark):
            own = configured_agent(host, project, for_user=False)
            return own or configured_agent(host, Path.home(), for_user=True)
    return None
