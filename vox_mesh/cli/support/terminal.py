"""The terminal that a command was started in, which one process group at a time may read from."""

from __future__ import annotations

import os
import signal
from typing import Final

_TERMINAL: Final = "/dev/tty"


class Terminal:
    """Gives the terminal to another process group, and takes it back; without one, it does nothing."""

    def __init__(self) -> None:
        self._is_given = False

    def give_if_interactive(self, group: int) -> None:
        """Give it away if all that is typed and shown is the command's: in a pipeline it is not."""
        if os.isatty(0) and os.isatty(1):
            self.give(group)

    def give(self, group: int) -> bool:
        """Give it away, if it is ours to give; whether the group has it now."""
        self._is_given = self._is_given or self._move(os.getpgrp(), group)
        return self._is_given

    def take_back(self) -> None:
        """Have it again, if it was given away."""
        if self._is_given:
            self._move(None, os.getpgrp())
            self._is_given = False

    def _move(self, owner: int | None, group: int) -> bool:
        """Make it that group's, if it is `owner`'s now."""
        # A group in the background is stopped when it does this.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            descriptor = os.open(_TERMINAL, os.O_RDWR | os.O_CLOEXEC)
            try:
                if owner is not None and os.tcgetpgrp(descriptor) != owner:
                    return False
                os.tcsetpgrp(descriptor, group)
            finally:
                os.close(descriptor)
        except OSError:  # there is none, or it is gone
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True
