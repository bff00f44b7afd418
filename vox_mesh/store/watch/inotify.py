"""Receive file-system events on Linux, through the C library's inotify calls."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from pathlib import Path
from typing import Final, Self

_MODIFY: Final = 0x2
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 65_536


class Inotify:
    """Reports writes to the file of that name, even if it does not exist yet."""

    def __init__(self, path: Path) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("there is no inotify on this system")
        import ctypes  # only needed by processes that wait for changes

        libc = ctypes.CDLL(None, use_errno=True)
        self._name = os.fsencode(path.name)
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if libc.inotify_add_watch(self._descriptor, os.fsencode(path.parent), _MODIFY | _CREATE) < 0:
            os.close(self._descriptor)
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed")
        self._touched = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for an event for at most `timeout` seconds. Return whether there was one.

        Events that arrive between calls stay in the kernel, which merges a burst into one.
        """
        self._loop.add_reader(self._descriptor, self._read)
        try:
            async with asyncio.timeout(timeout):
                await self._touched.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(self._descriptor)
        self._touched.clear()
        return True

    def _read(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        at = 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & _OVERFLOW or data[at - length : at].rstrip(b"\0") == self._name:
                self._touched.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
