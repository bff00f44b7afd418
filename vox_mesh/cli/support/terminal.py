"""The terminal of a command: which process group may read from it, and a progress bar on stderr."""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType
from typing import Any, Final, Self

import click

_TERMINAL: Final = "/dev/tty"


class Terminal:
    """Hands the terminal to another process group and takes it back; does nothing without a terminal."""

    def __init__(self) -> None:
        self._is_given = False

    def give_if_interactive(self, group: int) -> None:
        """Hand it over if stdin and stdout are the terminal: in a pipeline they are not."""
        if os.isatty(0) and os.isatty(1):
            self.give(group)

    def give(self, group: int) -> bool:
        """Hand it over if it is ours; return whether the group has it."""
        self._is_given = self._is_given or self._move(os.getpgrp(), group)
        return self._is_given

    def take_back(self) -> None:
        """Take it back, if it was handed over."""
        if self._is_given:
            self._move(None, os.getpgrp())
            self._is_given = False

    def _move(self, owner: int | None, group: int) -> bool:
        """Make `group` the foreground group, if `owner` is it now."""
        # Without this, a background group would be stopped by the call.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            descriptor = os.open(_TERMINAL, os.O_RDWR | os.O_CLOEXEC)
            try:
                if owner is not None and os.tcgetpgrp(descriptor) != owner:
                    return False
                os.tcsetpgrp(descriptor, group)
            finally:
                os.close(descriptor)
        except OSError:  # there is no terminal, or it was closed
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


class ProgressBar:
    """A progress bar on stderr, drawn once there is work left to do; without a terminal, never."""

    def __init__(self, label: str = "copying") -> None:
        self._label = label
        self._bar: Any = None
        self._start = 0
        self._done = 0

    def show(self, done: int, total: int) -> None:
        """Show `done` of `total`; the first call sets the start of the bar."""
        if self._bar is None:
            if done >= total or not sys.stderr.isatty():
                return
            self._start = self._done = done
            self._bar = click.progressbar(length=total - done, label=self._label, file=sys.stderr)
            self._bar.render_progress()  # at once: the next update may take a while
        self._bar.length = max(1, total - self._start)
        self._bar.update(done - self._done)
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.render_finish()
