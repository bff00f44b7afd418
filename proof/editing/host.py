"""A host of an agent, such as Claude Code: it calls the handlers in its configuration."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CONFIG: Final = Path(".claude", "settings.local.json")

_TIMED_OUT: Final = {"systemMessage": "locks not checked: the hook timed out"}
"""What the host says then; it goes on."""


class HostSession:
    """A session of the host in a work tree."""

    def __init__(self, tree: Path, session_id: str) -> None:
        self._tree = tree
        self._session_id = session_id
        self._hooks: dict[str, list[Any]] = json.loads((tree / CONFIG).read_text())["hooks"]

    def before_edit(self, path: str) -> dict[str, Any]:
        """Return what the handlers answer before an edit of a file."""
        given = {"file_path": str(self._tree / path), "old_string": "a", "new_string": "b"}
        event = self._event("PreToolUse", tool_name="Edit", tool_input=given, tool_use_id="toolu_1")
        (handler,) = self._handlers("PreToolUse", "Edit")
        try:
            return _post(handler, event) if handler["type"] == "http" else self._run(handler, event)
        except (TimeoutError, subprocess.TimeoutExpired):
            return _TIMED_OUT

    async def wait_for_mail(self) -> tuple[int | None, str]:
        """Run the waiter that the host leaves running when a turn ends; return its status and its words."""
        (waiter,) = [each for each in self._handlers("Stop", "") if each.get("asyncRewake")]
        process = await asyncio.create_subprocess_shell(
            waiter["command"], cwd=self._tree, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        _, said = await process.communicate(self._event("Stop", stop_hook_active=False))
        return process.returncode, said.decode()

    def _handlers(self, event: str, tool: str) -> Iterator[dict[str, Any]]:
        for group in self._hooks[event]:
            if re.fullmatch(group.get("matcher") or ".*", tool):
                yield from group["hooks"]

    def _event(self, name: str, **more: Any) -> bytes:
        common = {"session_id": self._session_id, "transcript_path": "", "cwd": str(self._tree)}
        return json.dumps({**common, "hook_event_name": name, "permission_mode": "default", **more}).encode()

    def _run(self, handler: dict[str, Any], event: bytes) -> dict[str, Any]:
        ran = subprocess.run(
            handler["command"],
            shell=True,
            input=event,
            cwd=self._tree,
            capture_output=True,
            timeout=handler["timeout"],
            check=True,
        )
        answer: dict[str, Any] = json.loads(ran.stdout or b"{}")
        return answer


def _post(handler: dict[str, Any], event: bytes) -> dict[str, Any]:
    """Send an event to the URL of a handler, with the variables that it may use in its headers."""
    headers = {"Content-Type": "application/json"}
    for name, value in handler["headers"].items():
        for variable in handler["allowedEnvVars"]:
            value = value.replace(f"${variable}", os.environ[variable])
        headers[name] = value
    request = urllib.request.Request(handler["url"], event, headers)
    with urllib.request.urlopen(request, timeout=handler["timeout"]) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
