"""The command line of the MCP inspector, as an outside client of servers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.install_npm import packages, run_node

_CALL_S: Final = 120
_CONNECT_MS: Final = 60_000
"""Its own limit of 15 s is too short for a server that starts on a busy machine."""


class Inspector:
    """Calls of one method each, to a server that options name."""

    def __init__(self, folder: Path, *target: str, variables: Mapping[str, str] | None = None) -> None:
        self._target = target
        # It keeps a list of servers; the one of the user is none of its business.
        self._variables = {"MCP_CATALOG_PATH": str(folder / "catalog.json"), **(variables or {})}

    @classmethod
    def over_http(cls, folder: Path, url: str, token: str) -> Inspector:
        """An inspector of a server at a URL."""
        return cls(folder, url, "--transport", "http", "--header", f"Authorization: Bearer {token}")

    @classmethod
    def over_stdio(cls, folder: Path, *command: str, variables: Mapping[str, str]) -> Inspector:
        """An inspector of a server that it starts itself."""
        given = [part for name, value in variables.items() for part in ("-e", f"{name}={value}")]
        return cls(folder, *given, *command)

    def ask(self, method: str, *options: str) -> Any:
        """Return what a method answers."""
        ended = self.run(method, *options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return json.loads(ended.stdout)

    def run(self, method: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Call a method, and return how the program ended."""
        clients = packages() / "@modelcontextprotocol" / "inspector" / "clients"
        return run_node(
            *(str(clients / "launcher" / "build" / "index.js"), "--cli"),
            *(*self._target, "--connect-timeout", str(_CONNECT_MS), "--method", method, *options),
            timeout_s=_CALL_S,
            variables=self._variables,
        )

    def call(self, tool: str, **arguments: str) -> dict[str, Any]:
        """Return the result of a tool."""
        given = [part for name, value in arguments.items() for part in ("--tool-arg", f"{name}={value}")]
        result: dict[str, Any] = self.ask("tools/call", "--tool-name", tool, *given)
        return result
