"""A command in a process group of its own, all of which ends with it, or with us, however we end.

The group is made by a guardian, a tiny shell that reads from a pipe which only this process can write to.
When we are gone the pipe ends, and the guardian kills its group, itself included. As it was there first,
nothing of the command can be left over; as it stays to the end, the group's number is never another's.

All that could wait (starting both, the command's end, what it leaves behind) is done in a thread of the
group's own: many groups live side by side, and the event loop waits for none of them.
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

from vox_mesh.store.engines.thread import SerialThread, to_the_end

GRACE_S: Final = 5.0
"""How long the processes of a group may take to end after SIGTERM, before they are killed."""

_LOOKS_S: Final = (0.001, 0.02)
_GONE_S: Final = 1.0
_GUARDIAN: Final = (
    "trap '' HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 ALRM; echo; exec >&-; read -r _; kill -KILL 0"
)
_WANTS_TERMINAL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_OFTEN_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_PRIVATE: Final = 0o077


class ControllingTerminal(Protocol):
    """The terminal that we were started in, as far as a group may have it."""

    def give_if_interactive(self, group: int) -> None:
        """Give it away if all that is typed and shown is the command's."""

    def give(self, group: int) -> bool:
        """Give it away, if it is ours to give; whether the group has it now."""

    def take_back(self) -> None:
        """Have it again, if it was given away."""


@dataclass(frozen=True)
class Start:
    """What is to be run, and what it has."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    executable: str | None = None
    """The file to run, if it is not the one that the first word names."""
    cwd: Path | None = None
    stdin: int | None = None
    """An open file, or one of subprocess's own, as the other two; else it has what we have."""
    stdout: int | None = None
    stderr: int | None = None
    is_apart: bool = False
    """It has nothing that we happen to have: no other open file, no signal ignored or blocked, no umask."""

    def spawn(self, group: int) -> subprocess.Popen[bytes]:
        """Start it as a member of the group."""
        return subprocess.Popen(  # noqa: S603 - what to run is the caller's to say
            self.argv,
            executable=self.executable,
            env=self.environment,
            cwd=self.cwd,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            close_fds=self.is_apart,
            umask=_PRIVATE if self.is_apart else -1,
            process_group=group,
        )


class ProcessGroup:
    """Runs one command. When that returns, all of its processes are gone."""

    def __init__(self, terminal: ControllingTerminal | None = None, *, grace_s: float = GRACE_S) -> None:
        self._terminal = terminal
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._early: list[int] = []
        self._id: int | None = None
        self._pid: int | None = None
        self.has_ended = False
        """Whether the command itself has: some of its group may be left."""
        self.usage: struct_rusage | None = None
        """What the command has used, once it has ended, with all of its children that it has waited for."""
        self._kill_at: float | None = None
        self._killing: asyncio.TimerHandle | None = None

    @property
    def number(self) -> int | None:
        """The group, as the system knows it: while there is one."""
        return self._id

    async def run(self, start: Start) -> int:
        """Run the command to its end; its exit code, or less than 0: the signal that killed it.

        Whatever it leaves behind in its group is stopped. Cancelled, so is the command.
        """
        _hear([signal.SIGCHLD, *(_OFTEN_IGNORED if start.is_apart else ())])
        thread = SerialThread("vox-mesh-group")
        living = thread.do(lambda: self._live(start))
        thread.finish()
        try:
            return await asyncio.shield(living)
        except asyncio.CancelledError:
            self.end()
            with suppress(OSError, ValueError):  # it could not even be started
                await to_the_end(living)
            raise
        finally:
            if self._killing is not None:
                self._killing.cancel()

    def end(self) -> None:
        """Have the command end: asked first, killed when its grace is over. `run` tells how it did."""
        if self._ask_to_end():
            loop = asyncio.get_running_loop()
            self._killing = loop.call_later(self._grace_s, self.signal, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; if the command has not begun yet, as soon as it has."""
        with self._lock:
            if self._id is None:
                self._early.append(number)
                return
            _signal_group(self._id, number)
            if self._pid is not None and not self.has_ended:  # then the number is still its own
                with suppress(ProcessLookupError):
                    group = os.getpgid(self._pid)
                    if group not in (self._id, os.getpgrp()):  # an interactive shell makes one of its own
                        _signal_group(group, number)

    # --- in the thread ---------------------------------------------------------------------------

    def _live(self, start: Start) -> int:
        guardian = _stand_guard()
        try:
            return self._lead(start, guardian.pid)
        finally:
            with self._lock:
                self._id = None
            with guardian:
                _signal_group(guardian.pid, signal.SIGKILL)
            if self._terminal is not None:
                self._terminal.take_back()

    def _lead(self, start: Start, group: int) -> int:
        if self._terminal is not None and start.stdin is None:
            self._terminal.give_if_interactive(group)
        if self._kill_at is not None:  # it is not wanted any more
            return -signal.SIGTERM
        process = _spawn(start, group)
        with self._lock:
            self._id, self._pid = group, process.pid
        for number in self._early:
            self.signal(number)
        code = process.returncode = self._ended(process.pid)
        self._end_rest(group)
        return code

    def _ended(self, pid: int) -> int:
        """Wait until the command has ended."""
        while True:
            _, status, usage = os.wait4(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.has_ended, self.usage = True, usage
                return os.waitstatus_to_exitcode(status)
            if os.WSTOPSIG(status) in _WANTS_TERMINAL:
                self._wants_terminal()

    def _wants_terminal(self) -> None:
        """It was stopped as it wants the terminal, or is told to leave it, while somebody waits for it."""
        if self._terminal is None:
            self.signal(signal.SIGKILL)  # it will never have it, and so never go on
        elif self._terminal.give(self._id or 0):
            self.signal(signal.SIGCONT)

    def _end_rest(self, group: int) -> None:
        """End what the command left behind: politely, then not."""
        if not _others(group):
            return
        self._ask_to_end()
        assert self._kill_at is not None
        if not _gone(group, self._kill_at):
            self.signal(signal.SIGKILL)
            _gone(group, time.monotonic() + _GONE_S)

    def _ask_to_end(self) -> bool:
        """Ask all to end, and note until when they may take; whether nobody has asked before."""
        with self._lock:
            if self._kill_at is not None:
                return False
            self._kill_at = time.monotonic() + self._grace_s
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # what was stopped could not end
        return True


# --- starting ------------------------------------------------------------------------------------


def _hear(numbers: Iterable[int]) -> None:
    """Don't ignore signals, but do nothing on them: a command inherits the former only.

    A process that ignores SIGCHLD is moreover never told how its children ended.
    """
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)


def _stand_guard() -> subprocess.Popen[bytes]:
    """Start a group with its guardian, and wait until it is on its guard."""
    guardian = subprocess.Popen(  # noqa: S603 - words of our own
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
    # The mask is that of this thread, which the command inherits.
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK if start.is_apart else signal.SIG_BLOCK, ())
    try:
        return start.spawn(group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# --- the group as the system sees it -------------------------------------------------------------


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # some may be another user's by now
        os.killpg(group, number)


def _others(group: int) -> set[int]:
    """All of a group but its guardian."""
    return members(group) - {group}


def _gone(group: int, deadline: float) -> bool:
    """Wait until only the guardian is left; whether that was in time."""
    pause, longest = _LOOKS_S
    while _others(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)  # grandchildren are not ours: there is no event to wait for
        pause = min(2 * pause, longest)
    return True


def members(group: int) -> set[int]:
    """The processes of a group that have not ended."""
    if not Path("/proc/self/stat").exists():
        columns = "pid=,stat=,pgid="
        listed = subprocess.run(["/bin/ps", "-A", "-o", columns], capture_output=True, text=True, check=True)  # noqa: S603 - the same
        rows = (line.split() for line in listed.stdout.splitlines())
        return {int(pid) for pid, state, pgid in rows if int(pgid) == group and state[0] != "Z"}
    # Asking for the group of each is much cheaper than reading what there is to know of each.
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return {pid for pid in pids if group_of(pid) == group and _is_alive(pid)}


def group_of(pid: int) -> int | None:
    """The group of a process that has not ended."""
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended meanwhile
        return None


def _is_alive(pid: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return told.rpartition(") ")[2][0] not in "ZX"
