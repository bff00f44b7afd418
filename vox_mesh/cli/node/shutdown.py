"""How the process of a node ends: when it is told to, and for certain."""

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

_CUT_OFF: Final = (
    b"vox-mesh: not all work could be given back in time; it comes again when its leases are over\n"
)


class _LastCall(NamedTuple):
    """When the process ends if it has not by itself, with which code and which words."""

    at: float
    code: int
    words: bytes = b""

    def answer(self) -> NoReturn:
        """End it."""
        with suppress(OSError):
            os.write(2, self.words)
        os._exit(self.code)


class ShutdownWatchdog:
    """Hears signals, and ends the process if it does not end by itself.

    All of that is done in a thread: a handler may block the loop, and with it the one thread that Python
    tells of signals.
    """

    def __init__(self, tell: Callable[[], object], leaving_s: float) -> None:
        self._tell = tell
        self._leaving_s = leaving_s
        self._is_told = False
        self._last_call: _LastCall | None = None
        self._heard, self._hears = os.pipe()
        os.set_blocking(self._hears, False)
        self._numbers = {each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
        signal.set_wakeup_fd(self._hears, warn_on_full_buffer=False)  # first, or one in between was lost
        for number in self._numbers:  # others are ignored as nohup, and shells in the background, want
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, name="vox-mesh-watch", daemon=True).start()

    def end_within(self, seconds: float, code: int) -> None:
        """It may take so long from now on, and not what it might before."""
        self._last_call = _LastCall(time.monotonic() + seconds, code)
        os.write(self._hears, b"\0")

    def _watch(self) -> None:
        while True:
            last_call = self._last_call
            left_s = None if last_call is None else max(0.0, last_call.at - time.monotonic())
            if select.select([self._heard], [], [], left_s)[0]:
                for number in os.read(self._heard, 64):
                    if number in self._numbers:
                        self._signalled(number)
            elif last_call is not None and last_call is self._last_call:
                last_call.answer()

    def _signalled(self, number: int) -> None:
        if self._is_told:
            os._exit(KILLED + number)
        self._is_told = True
        if self._last_call is None:
            self._last_call = _LastCall(time.monotonic() + self._leaving_s, ExitCode.NO, _CUT_OFF)
        with suppress(RuntimeError):  # the loop has ended by itself
            self._tell()
