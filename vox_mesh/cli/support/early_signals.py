"""Signals that arrive while a node's command is still loading: nothing has started, so it exits at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask a command to end."""

_NODES: Final = (["up"], ["worker", "run"])
_STOPPED: Final = b"vox-mesh: stopped before the node was up\n"
_DONE: Final = 0


def handle_early_signals(arguments: Sequence[str]) -> None:
    """Make a signal end a node's command with 0, as it does later, until the node installs its own handlers.

    Without this, Python would answer Ctrl-C during the import with a traceback.
    """
    if not any(list(arguments[: len(each)]) == each for each in _NODES):
        return
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background shells ignore some
            signal.signal(number, _end)


def _end(*_: object) -> None:
    try:
        os.write(2, _STOPPED)
    finally:
        os._exit(_DONE)
