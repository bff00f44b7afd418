"""Signals that come while the command of a node is still loaded: nothing was begun, so it ends at once."""

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


def heed_early_signals(arguments: Sequence[str]) -> None:
    """Have a signal end the command of a node with 0, as it does later; the node's run takes over from this.

    Loading takes a while, in which Python would answer Ctrl-C with a traceback.
    """
    if not any(list(arguments[: len(each)]) == each for each in _NODES):
        return
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, and shells in the background, want
            signal.signal(number, _end)


def _end(*_: object) -> None:
    try:
        os.write(2, _STOPPED)
    finally:
        os._exit(_DONE)
