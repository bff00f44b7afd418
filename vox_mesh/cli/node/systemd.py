"""What the service manager is told: that a node is ready, that it lives, and that it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final

_log = logging.getLogger(__name__)

_MICROSECONDS: Final = 1_000_000
_OFTEN: Final = 3
"""So often in the time after which the manager takes us for dead."""


class ServiceManager:
    """Tells systemd, where it has started us: its variables say how. Elsewhere nobody is told."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_failing = False

    def ready(self, status: str) -> None:
        """The node is there."""
        self._say(f"READY=1\nSTATUS={_line(status)}")

    def stopping(self) -> None:
        """The node ends."""
        self._say("STOPPING=1\nSTATUS=giving back what is in hand")

    @property
    def interval_s(self) -> float | None:
        """How often it wants a sign of life, if it wants any from this process."""
        limit, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if not self._address or not limit.isdigit() or not int(limit) or pid not in ("", str(os.getpid())):
            return None
        return int(limit) / _MICROSECONDS / _OFTEN

    async def keep_telling(self) -> None:
        """Give signs of life, for ever: a loop that hangs gives none."""
        interval_s = self.interval_s
        while interval_s is not None:
            self._say("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _say(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.connect(self._address)
                manager.send(message.encode())
        except OSError as error:
            if not self._is_failing:
                _log.warning("the service manager can't be told: %s", error.strerror or error)
            self._is_failing = True


def _line(text: str) -> str:
    return " ".join(text.split())
