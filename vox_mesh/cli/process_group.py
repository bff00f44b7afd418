"""A command in a process group of its own, all of which ends with it, or with us, however we end.

The group is made by a guardian, a tiny shell that reads from a pipe which only this process can write to.
When we are gone the pipe ends, and the guardian kills its group, itself included. As it was there first,
nothing of the command can be left over; as it stays to the end, the group's number is never another's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from vox_mesh.cli.terminal import Terminal
from vox_mesh.store.thread import to_the_end

GRACE_S: Final = 5.0
"""How long the processes of a group may take to end after SIGTERM, before they are killed."""

_LOOK_S: Final = 0.02
_GONE_S: Final = 1.0
_KILLED: Final = 128
_GUARDIAN: Final = (
    "trap '' HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 ALRM; echo; exec >&-; read -r _; kill -KILL 0"
)
# What Python ignores, and no command expects to be.
_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_WANTS_TERMINAL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class ProcessGroup:
    """Runs one command; leave it, and all of its processes are gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pid: int | None = None
        self._terminal = Terminal()
        self._guardian = subprocess.Popen(  # noqa: S603 - words of our own
            ["/bin/sh", "-c", _GUARDIAN, "vox-mesh-guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        assert self._guardian.stdout is not None
        self._guardian.stdout.read()  # it is on its guard now
        self._id = self._guardian.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal_group(self._id, signal.SIGKILL)
        self._guardian.communicate()
        self._terminal.take_back()

    async def run(
        self, command: list[str], environment: Mapping[str, str], *, stdin: int | None = None
    ) -> int:
        """Run the command to its end; its exit code, or 128 and the signal that killed it.

        It reads from `stdin`, an open file, or else from what we do. Whatever it leaves behind in its group
        is stopped. Cancelled, so is the command.
        """
        if stdin is None:
            self._terminal.give_if_interactive(self._id)
        self._loop.add_signal_handler(signal.SIGCHLD, self._look)
        try:
            self._start(command, environment, stdin)
            return await asyncio.shield(self._ended)
        finally:
            if self._pid is not None:
                await to_the_end(asyncio.ensure_future(self._stop()))
            self._loop.remove_signal_handler(signal.SIGCHLD)

    def _start(self, command: list[str], environment: Mapping[str, str], stdin: int | None) -> None:
        self._pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=() if stdin is None else [(os.POSIX_SPAWN_DUP2, stdin, 0)],
            setpgroup=self._id,
            setsigdef=_DEFAULT_SIGNALS,
        )
        self._look()

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        self._signal_group(self._id, number)
        if self._pid is not None and not self._ended.done():  # then the number is still its own
            with suppress(ProcessLookupError):
                group = os.getpgid(self._pid)
                if group not in (self._id, os.getpgrp()):  # an interactive shell makes one of its own
                    self._signal_group(group, number)

    def _signal_group(self, group: int, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # some may be another user's by now
            os.killpg(group, number)

    def _look(self) -> None:
        """See whether the command has ended, or was stopped."""
        if self._pid is None or self._ended.done():
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            # It wants the terminal, or is told to leave it, while it holds a lock: it gets it, and goes on.
            if os.WSTOPSIG(status) in _WANTS_TERMINAL and self._terminal.give(self._id):
                self.signal(signal.SIGCONT)
            return
        code = os.waitstatus_to_exitcode(status)
        self._ended.set_result(code if code >= 0 else _KILLED - code)

    async def _stop(self) -> None:
        """End what is left: politely, then not."""
        if self._is_alive:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # what was stopped could not end
            await self._gone(GRACE_S)
            self.signal(signal.SIGKILL)
            await self._gone(_GONE_S)

    async def _gone(self, timeout: float) -> None:
        deadline = self._loop.time() + timeout
        while self._is_alive:
            if self._loop.time() > deadline:
                return
            await asyncio.sleep(_LOOK_S)  # grandchildren are not ours: there is no event to wait for

    @property
    def _is_alive(self) -> bool:
        return not self._ended.done() or bool(members(self._id) - {self._guardian.pid})


def members(group: int) -> set[int]:
    """The processes of a group that have not ended."""
    found = set()
    for line in _processes():
        pid, _, rest = line.partition(" ")
        state, _, pgid = rest.rpartition(") ")[2].split()[:3]
        if int(pgid) == group and state[0] not in "ZX":
            found.add(int(pid))
    return found


def _processes() -> list[str]:
    """A line for each process, as Linux writes it: id, name in brackets, state, parent and group."""
    if not Path("/proc/self/stat").exists():
        columns = "pid=,stat=,ppid=,pgid="
        listed = subprocess.run(["/bin/ps", "-A", "-o", columns], capture_output=True, text=True, check=True)  # noqa: S603 - the same
        rows = (line.split() for line in listed.stdout.splitlines())
        return [f"{pid} () {state} {parent} {group}" for pid, state, parent, group in rows]
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                lines.append((entry / "stat").read_text(errors="replace"))
    return lines
