"""A real terminal, in which a command runs."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from typing import Any, Final

from tests.cli.conftest import VoxCommand
from tools.fork_server import Program
from tools.forked import fork

_PATIENCE_S: Final = 60.0


class Terminal:
    """A terminal of 80 columns and 24 lines in which a command runs."""

    def __init__(self, vox: VoxCommand, *arguments: str, code: str = "") -> None:
        self._ours, self._theirs = pty.openpty()
        ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self._theirs)
        module = "" if code else "vox_mesh.cli"
        program = Program(arguments, vox.environment, module=module, code=code, folder=str(vox.folder))
        reported = fork(program, self._theirs, self._theirs, self._theirs)
        self._told = os.fdopen(reported, buffering=1)
        self.pid = int(self._told.readline())
        self.shown = b""

    def until(self, condition: Callable[[bytes], bool]) -> bytes:
        """Read until what was shown is as it should be; what was shown."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(self.shown):
            left = deadline - time.monotonic()
            assert left > 0, self.shown[-3_000:]
            if select.select([self._ours], [], [], left)[0]:
                self.shown += os.read(self._ours, 65_536)
        return self.shown

    def shows(self, *words: str) -> bytes:
        """Wait until all of these were shown."""
        return self.until(lambda shown: all(word.encode() in shown for word in words))

    def type(self, keys: str) -> None:
        """Type something; what was shown before does not count any more."""
        self.shown = b""
        os.write(self._ours, keys.encode())

    def ended(self) -> int:
        """Wait for its end; the exit code. What it shows meanwhile is read, or it could not end."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            reported = self._told.fileno()
            files = [reported] if self._ours < 0 else [reported, self._ours]
            ready = select.select(files, [], [], 1.0)[0]
            if self._ours in ready:
                self.shown += os.read(self._ours, 65_536)
            elif reported in ready:
                return int(self._told.readline())
        raise AssertionError(self.shown[-3_000:])

    @property
    def modes_now(self) -> list[Any]:
        """How the terminal treats what is typed and shown."""
        return termios.tcgetattr(self._theirs)

    def hang_up(self) -> None:
        """Take the terminal away, as a lost connection does."""
        for file in (self._theirs, self._ours):
            if file >= 0:
                os.close(file)
        self._theirs = self._ours = -1

    def close(self) -> None:
        """Leave nothing behind."""
        if not self._told.closed:
            with self._told, suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.hang_up()


@contextmanager
def terminal(vox: VoxCommand, *arguments: str, term: str = "xterm", code: str = "") -> Iterator[Terminal]:
    """The command, or a program, in a terminal of this sort."""
    opened = Terminal(vox.having(TERM=term), *arguments, code=code)
    try:
        yield opened
    finally:
        opened.close()
