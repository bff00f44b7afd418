"""Run a command in a process group of its own, which ends with the command or with this process.

A guardian creates the group: a tiny shell that reads from a pipe which only this process can write to. When
this process ends, even by SIGKILL, the pipe closes and the guardian kills its group, itself included. Since
it starts first, no process of the command can be left over; since it stays to the end, the group's number is
never reused.

Everything that blocks (starting both, waiting for the command, ending its children) happens in a thread of
the group, so the event loop can run many groups concurrently.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import struct_rusage
from typing import Final, Protocol

from vox_mesh.jobs.exec.isolation import ExecUser
from vox_mesh.settings.process import deny_new_privileges
from vox_mesh.store.engines.thread import SerialThread, to_the_end

GRACE_S: Final = 5.0
"""The seconds between SIGTERM and SIGKILL for the processes of a group."""

_POLL_PAUSES_S: Final = (0.001, 0.02)
_KILL_TIMEOUT_S: Final = 1.0
_GUARDIAN: Final = (
    "trap '' HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 ALRM; echo; exec >&-; read -r _; kill -KILL 0"
)
_TERMINAL_STOPS: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_OFTEN_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_PRIVATE_UMASK: Final = 0o077


class ControllingTerminal(Protocol):
    """The controlling terminal of this process, which may be passed to a group."""

    def give_if_interactive(self, group: int) -> None:
        """Pass the terminal to the group if its input and output are the command's alone."""

    def give(self, group: int) -> bool:
        """Pass the terminal to the group if possible, and return whether the group has it."""

    def take_back(self) -> None:
        """Take the terminal back if it was passed on."""


@dataclass(frozen=True)
class Start:
    """The program to run, with its arguments, environment and files."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    executable: str | None = None
    """The file to run, if it is not the first argument."""
    cwd: Path | None = None
    stdin: int | None = None
    """A file descriptor or a constant of `subprocess`, like the other two; `None` inherits."""
    stdout: int | None = None
    stderr: int | None = None
    is_apart: bool = False
    """Whether nothing is inherited: no open files, no ignored or blocked signals, no umask."""
    user: ExecUser | None = None
    """The user to run as; `None` for that of this process."""

    def spawn(self, group: int) -> subprocess.Popen[bytes]:
        """Start the program as a member of the group."""
        user = self.user
        if user is not None:
            deny_new_privileges()  # of this thread, which only starts the command
        return subprocess.Popen(  # noqa: S603 - the caller decides what runs
            self.argv,
            executable=self.executable,
            env=self.environment,
            cwd=self.cwd,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            close_fds=self.is_apart,
            umask=_PRIVATE_UMASK if self.is_apart else -1,
            process_group=group,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else user.groups,
        )


class ProcessGroup:
    """Runs one command. When `run` returns, all processes of the group have ended."""

    def __init__(self, terminal: ControllingTerminal | None = None, *, grace_s: float = GRACE_S) -> None:
        self._terminal = terminal
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._early: list[int] = []
        self._id: int | None = None
        self._pid: int | None = None
        self.has_ended = False
        """Whether the command itself has ended; other processes of its group may be left."""
        self.usage: struct_rusage | None = None
        """The resource usage of the ended command, including the children it has waited for."""
        self._kill_at: float | None = None
        self._killing: asyncio.TimerHandle | None = None

    @property
    def number(self) -> int | None:
        """Return the process group id, or `None` while there is no group."""
        return self._id

    async def run(self, start: Start) -> int:
        """Run the command and return its exit code, or the negative number of the signal that killed it.

        Processes that it leaves in its group are ended. A cancellation ends the command too.
        """
        _unignore([signal.SIGCHLD, *(_OFTEN_IGNORED if start.is_apart else ())])
        thread = SerialThread("vox-mesh-group")
        running = thread.do(lambda: self._run_guarded(start))
        thread.finish()
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.end()
            with suppress(OSError, ValueError):  # it could not be started
                await to_the_end(running)
            raise
        finally:
            if self._killing is not None:
                self._killing.cancel()

    def end(self) -> None:
        """End the command: SIGTERM first, SIGKILL after the grace period. `run` returns its exit code."""
        if self._ask_to_end():
            loop = asyncio.get_running_loop()
            self._killing = loop.call_later(self._grace_s, self.signal, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, once the command has started."""
        with self._lock:
            if self._id is None:
                self._early.append(number)
                return
            _signal_group(self._id, number)
            if self._pid is not None and not self.has_ended:  # then the pid is not reused
                with suppress(ProcessLookupError):
                    group = os.getpgid(self._pid)
                    if group not in (self._id, os.getpgrp()):  # an interactive shell creates its own group
                        _signal_group(group, number)

    # --- in the thread ---------------------------------------------------------------------------

    def _run_guarded(self, start: Start) -> int:
        guardian = _start_guardian()
        try:
            return self._run_in_group(start, guardian.pid)
        finally:
            with self._lock:
                self._id = None
            with guardian:
                _signal_group(guardian.pid, signal.SIGKILL)
            if self._terminal is not None:
                self._terminal.take_back()

    def _run_in_group(self, start: Start, group: int) -> int:
        if self._terminal is not None and start.stdin is None:
            self._terminal.give_if_interactive(group)
        if self._kill_at is not None:  # ended before it was started
            return -signal.SIGTERM
        process = _spawn(start, group)
        with self._lock:
            self._id, self._pid = group, process.pid
        for number in self._early:
            self.signal(number)
        code = process.returncode = self._wait_for(process.pid)
        self._end_rest(group)
        return code

    def _wait_for(self, pid: int) -> int:
        """Wait for the command and return its exit code."""
        while True:
            _, status, usage = os.wait4(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.has_ended, self.usage = True, usage
                return os.waitstatus_to_exitcode(status)
            if os.WSTOPSIG(status) in _TERMINAL_STOPS:
                self._resolve_stop()

    def _resolve_stop(self) -> None:
        """Continue a command that was stopped for access to the terminal, or kill it if there is none."""
        if self._terminal is None:
            self.signal(signal.SIGKILL)  # it would stay stopped
        elif self._terminal.give(self._id or 0):
            self.signal(signal.SIGCONT)

    def _end_rest(self, group: int) -> None:
        """End the processes that the command left: SIGTERM first, then SIGKILL."""
        if not _others(group):
            return
        self._ask_to_end()
        assert self._kill_at is not None
        if not _wait_until_empty(group, self._kill_at):
            self.signal(signal.SIGKILL)
            _wait_until_empty(group, time.monotonic() + _KILL_TIMEOUT_S)

    def _ask_to_end(self) -> bool:
        """Send SIGTERM to the group and set the deadline. Return whether this is the first request."""
        with self._lock:
            if self._kill_at is not None:
                return False
            self._kill_at = time.monotonic() + self._grace_s
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process can't handle SIGTERM
        return True


# --- starting ------------------------------------------------------------------------------------


def _unignore(numbers: Iterable[int]) -> None:
    """Replace ignored signals by an empty handler: a command inherits ignored signals, not handlers.

    Moreover, a process that ignores SIGCHLD does not get the exit codes of its children.
    """
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)


def _start_guardian() -> subprocess.Popen[bytes]:
    """Start the guardian in a new group, and wait until it is ready."""
    guardian = subprocess.Popen(  # noqa: S603 - constant arguments
        ["/bin/sh", "-c", _GUARDIAN, "vox-mesh-guardian"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        process_group=0,
    )
    assert guardian.stdout is not None
    guardian.stdout.read()
    return guardian


def _spawn(start: Start, group: int) -> subprocess.Popen[bytes]:
    # The command inherits the signal mask of this thread.
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK if start.is_apart else signal.SIG_BLOCK, ())
    try:
        return start.spawn(group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# --- members of a group --------------------------------------------------------------------------


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # some may have changed their user
        os.killpg(group, number)


def _others(group: int) -> set[int]:
    """Return the members of a group without its guardian."""
    return members(group) - {group}


def _wait_until_empty(group: int, deadline: float) -> bool:
    """Wait until only the guardian is left, and return whether that was before the deadline."""
    pause, max_pause = _POLL_PAUSES_S
    while _others(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)  # grandchildren can't be waited for
        pause = min(2 * pause, max_pause)
    return True


def members(group: int) -> set[int]:
    """Return the pids of a group's processes that have not ended."""
    if not Path("/proc/self/stat").exists():
        columns = "pid=,stat=,pgid="
        listed = subprocess.run(["/bin/ps", "-A", "-o", columns], capture_output=True, text=True, check=True)  # noqa: S603 - constant arguments
        rows = (line.split() for line in listed.stdout.splitlines())
        return {int(pid) for pid, state, pgid in rows if int(pgid) == group and state[0] != "Z"}
    # Reading the group of each process is much cheaper than reading its status.
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return {pid for pid in pids if group_of(pid) == group and _is_alive(pid)}


def group_of(pid: int) -> int | None:
    """Return the group of a process, or `None` if it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(") ")[2][0] not in "ZX"
