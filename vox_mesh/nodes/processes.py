"""Processes of this machine, identified by number and start: a reused number is another process.

Only a process that shares our kernel and our numbering of processes can be looked at: that is its host. What
can't be seen counts as running.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadSettings, BadValue

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset("ZXx")
_START: Final = 19  # the field of /proc/PID/stat with the start, counted from the state
_PARENT: Final = 1
_SHELLS: Final = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "sh", "zsh"})
_WRAPPERS: Final = frozenset({"env", "nice", "nohup", "setsid", "stdbuf", "time", "timeout", "uv", "uvx"})
_INIT: Final = frozenset({"init", "systemd"})
_MAX_ANCESTORS: Final = 32
_HINT: Final = "pass --session-pid with the number of the agent's process"


class ProcessId(NamedTuple):
    """A process: its host, its number there, and its start in ticks of the kernel's clock."""

    host: str
    pid: int
    started: int


@cache
def host_id() -> str | None:
    """Return an id shared exactly by the processes that can see each other; `None` if there is no such id."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        spaces = [str((_PROC / "self/ns" / name).readlink()) for name in ("pid", "time")]
    except OSError:
        return None
    return ":".join((boot, *spaces))


def process_of(pid: int) -> ProcessId:
    """Return a running process of this user; raise `BadValue` if there is none."""
    host, started = host_id(), _started(pid)
    if host is None:
        raise BadSettings("processes can't be identified on this system", hint="pass --ttl instead")
    if started is None or _user_of(pid) != os.geteuid():
        raise BadValue(f"process must be a running one of this user, got {pid}", hint=_HINT)
    return ProcessId(host, pid, started)


def is_gone(process: ProcessId) -> bool:
    """Return whether a process has certainly ended. One of another host never has."""
    if process.host != host_id() or process.pid <= 0:
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    stat = _stat(process.pid)
    return stat is not None and (stat[0] in _ENDED or int(stat[_START]) != process.started)


def calling_process() -> int:
    """Return the number of the process that this command works for.

    It is the nearest ancestor that outlives the command: no shell that was started for one command line
    (`sh -c`), and no wrapper such as `timeout`. Raises `BadValue` if there is none.
    """
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        stat, words = _stat(pid), _command_of(pid)
        if stat is None or (pid == 1 and words[:1] and _name(words[0]) in _INIT):
            break
        if not _is_passing(words):
            return pid
        pid = int(stat[_PARENT])
    raise BadValue("the agent's process can't be found: this command has no lasting parent", hint=_HINT)


def _is_passing(words: list[str]) -> bool:
    name = _name(words[0]) if words else ""
    if name in _WRAPPERS:
        return True
    options = [word for word in words[1:3] if word.startswith("-") and not word.startswith("--")]
    return name in _SHELLS and any("c" in option for option in options)


def _name(word: str) -> str:
    return word.rpartition("/")[2].removeprefix("-")


def _command_of(pid: int) -> list[str]:
    try:
        return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process from its state on; its name, which may hold anything, is before them."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return fields if len(fields) > _START else None


def _started(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None or stat[0] in _ENDED else int(stat[_START])


def _user_of(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[2]) for line in lines if line.startswith("Uid:")), None)
