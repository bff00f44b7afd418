"""The shutdown of a node's process: on a signal, and within a bounded time."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from vox_mesh.cli.support.early_signals import ENDING
from vox_mesh.cli.support.exit_codes import KILLED, ExitCode

_TIMED_OUT: Final = (
    b"vox-mesh: shutdown timed out: unreleased jobs are claimed again when their leases expire\n"
)


class _Deadline(NamedTuple):
    """The time at which the process is ended, with its exit code and message."""

    at: float
    code: int
    message: bytes = b""

    def exit(self) -> NoReturn:
        """End the process."""
        with suppress(OSError):
            os.write(2, self.message)
        os._exit(self.code)


class ShutdownWatchdog:
    """Receives signals, and ends the process if it does not end by itself in time.

    It runs in a thread: a handler may block the event loop, and with it the main thread, which is the only
    one that Python notifies of signals.
    """

    def __init__(self, on_signal: Callable[[], object], leaving_s: float) -> None:
        self._on_signal = on_signal
        self._leaving_s = leaving_s
        self._is_signalled = False
        self._deadline: _Deadline | None = None
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._numbers = {each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
        # Before the handlers: a signal in between would be lost.
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._numbers:  # nohup and background shells ignore the others
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, name="vox-mesh-watch", daemon=True).start()

    def end_within(self, seconds: float, code: int) -> None:
        """End the process within this time from now, instead of the previous deadline."""
        self._deadline = _Deadline(time.monotonic() + seconds, code)
        os.write(self._write_end, b"\0")

    def _watch(self) -> None:
        while True:
            deadline = self._deadline
            left_s = None if deadline is None else max(0.0, deadline.at - time.monotonic())
            if select.select([self._read_end], [], [], left_s)[0]:
                for number in os.read(self._read_end, 64):
                    if number in self._numbers:
                        self._receive(number)
            elif deadline is not None and deadline is self._deadline:
                deadline.exit()

    def _receive(self, number: int) -> None:
        if self._is_signalled:
            os._exit(KILLED + number)
        self._is_signalled = True
        if self._deadline is None:
            self._deadline = _Deadline(time.monotonic() + self._leaving_s, ExitCode.NO, _TIMED_OUT)
        with suppress(RuntimeError):  # the loop has already ended
            self._on_signal()
