"""The hands of an agent: it asks the hook of its host before an edit, edits a file, and commits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from proof.chaos.protocol import append_events_to
from proof.editing.host import HostSession
from proof.editing.repository import git_environment, run_git
from proof.editing.spec import AgentSpec, Mark
from proof.history import Recorder


class Hands:
    """What an agent does outside of the mesh. Each step is in the history."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        path = Path(spec.folder) / f"{spec.who}-{spec.incarnation}.jsonl"
        self.recorder = Recorder(spec.who, spec.incarnation, time.monotonic, append_events_to(path))
        self._tree = Path(spec.project)
        self._host = HostSession(self._tree, f"{spec.who}-{spec.incarnation}")
        self._numbers = count(1)

    # --- the hook of the host ------------------------------------------------------------------------

    async def ask_hook(self, path: str) -> bool:
        """Run the hook before an edit; return whether the edit is allowed."""
        answer = await asyncio.to_thread(self._host.before_edit, path)
        specific = answer.get("hookSpecificOutput", {})
        is_denied = specific.get("permissionDecision") == "deny"
        is_unchecked = "locks not checked" in answer.get("systemMessage", "")
        self.recorder.note("hook", path=path, denied=is_denied, unchecked=is_unchecked)
        if is_denied:
            reason = specific.get("permissionDecisionReason", "")
            self.recorder.note("refusal", via="hook", path=path, text=reason)
        return not is_denied and not is_unchecked

    async def wait_for_mail(self) -> None:
        """Be idle until the waiter of the host wakes the agent."""
        status, text = await self._host.wait_for_mail()
        self.recorder.note("woken", status=status, text=text)

    # --- files ---------------------------------------------------------------------------------------

    async def edit(self, path: str, *, allowed: bool, halfway: Callable[[], None] = lambda: None) -> None:
        """Add a line to a file, in two pieces."""
        mark = Mark(self.spec.who, self.spec.incarnation, next(self._numbers))
        self.recorder.note("edit", path=path, mark=str(mark), allowed=allowed)
        first, second = mark.halves
        with (self._tree / path).open("a") as file:
            file.write(first)
            file.flush()
            halfway()
            await asyncio.sleep(self.spec.rest_s)
            file.write(second)

    async def restore(self) -> None:
        """Drop what was not committed."""
        await self._git("checkout", "--quiet", "HEAD", "--", ".")

    async def commit(self, path: str) -> bool:
        """Commit a file; return whether the guard let it in."""
        with self.recorder.operation("commit", path=path) as record:
            done = await self._git("commit", "--quiet", "--message", f"edit {path}", "--", path)
            if done.returncode == 0:
                record.ok()
            else:
                record.no(status=done.returncode)
        if not record.is_ok:
            self.recorder.note("refusal", via="guard", path=path, text=done.stdout + done.stderr)
        return record.is_ok

    async def _git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        who = self.spec.who
        variables = {**os.environ, **git_environment(who), "VOX_AGENT_ID": who}
        return await asyncio.to_thread(run_git, self._tree, *arguments, **variables)
