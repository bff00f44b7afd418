"""A host of an agent, as the benchmark plays it: it calls the handlers that are installed for Claude Code."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from bench.programs.http_wire import HttpWire, WireAnswer
from vox_mesh.hosts.setup.hook_plan import HookPlan
from vox_mesh.hosts.setup.hook_trial import sample_of
from vox_mesh.hosts.setup.hosts.claude import CLAUDE
from vox_mesh.hosts.setup.hosts.host import HookCall
from vox_mesh.hosts.setup.installer import install_script, interpreter

_SHELL: Final = "/bin/sh"
_BARE: Final = ("-IS", "-c", "pass")
_WAITS: Final = "--wait"
_PATIENCE_S: Final = 60.0
_WAKING: Final = 2


class ProcessCost(NamedTuple):
    """What a process and its children took from start to end."""

    wall_ms: float
    cpu_ms: float


class HookHost:
    """Claude Code in a project, for an agent whose token is in the home of the mesh."""

    def __init__(self, project: Path, home: Path, agent: str, address: str) -> None:
        self._project = project
        self._agent = agent
        by_command = HookPlan(CLAUDE.name, home, interpreter(), project, agent, auto=True)
        over_http = HookPlan(CLAUDE.name, home, interpreter(), project, agent, auto=True, address=address)
        install_script(by_command.script)
        self._commands, self._urls = (
            CLAUDE.calls(CLAUDE.put(None, plan)) for plan in (by_command, over_http)
        )

    def edit_of(self, path: str) -> bytes:
        """Return the event before an edit of a file."""
        return self._event("before_edit", path)

    async def ask_over_http(self, event: bytes, token: str) -> WireAnswer:
        """Ask the node before an edit, with the token of the agent and on a new connection."""
        parts = urlsplit(_before_edit(self._urls).url)
        async with HttpWire.to_url(f"http://{parts.netloc}", token) as wire:
            return await wire.ask("POST", f"{parts.path}?{parts.query}", event)

    def ask_by_command(self, event: bytes) -> ProcessCost:
        """Run the command before an edit to its end. No other process may end meanwhile."""
        return _run([_SHELL, "-c", _before_edit(self._commands).command], event, b"{}")

    def start_waiter(self) -> subprocess.Popen[bytes]:
        """Start the command that waits for mail after a stop."""
        (call,) = (each for each in self._commands if _WAITS in each.command)
        process = subprocess.Popen(
            [_SHELL, "-c", call.command],
            cwd=self._project,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(self._event("stop", ""))
        process.stdin.close()
        process.stdin = None  # so that `communicate` does not close it again
        return process

    def _event(self, kind: str, path: str) -> bytes:
        return orjson.dumps(sample_of(CLAUDE.name, kind, self._project, path).document)


def woken_at(waiter: subprocess.Popen[bytes], text: str) -> float:
    """Wait until a waiter has ended with this text for the agent; return the time."""
    _, said = waiter.communicate(timeout=_PATIENCE_S)
    ended = perf_counter()
    if waiter.returncode != _WAKING or text.encode() not in said:
        raise RuntimeError(f"the waiter ended with {waiter.returncode}: {said.decode()}")
    return ended


def run_bare_interpreter() -> ProcessCost:
    """Run an interpreter that does nothing, by a shell as a host does."""
    return _run([_SHELL, "-c", " ".join((interpreter(), *_BARE))], b"", b"")


def _before_edit(calls: list[HookCall]) -> HookCall:
    return next(each for each in calls if each.event == "PreToolUse")


def _run(command: list[str], given: bytes, expected: bytes) -> ProcessCost:
    cpu_s, began = _ended_cpu_s(), perf_counter()
    ended = subprocess.run(
        command, input=given, capture_output=True, env=_environment(), timeout=_PATIENCE_S, check=True
    )
    took = ProcessCost((perf_counter() - began) * 1e3, (_ended_cpu_s() - cpu_s) * 1e3)
    if ended.stdout.strip() != expected:
        raise RuntimeError(f"{command[-1]} printed {ended.stdout.decode()}")
    return took


def _ended_cpu_s() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
