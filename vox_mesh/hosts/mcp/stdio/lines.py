"""Lines of stdin and stdout. Threads read and write them, as either may be a pipe, a file or a terminal."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from contextlib import suppress
from typing import BinaryIO, Final

MAX_LINE_BYTES: Final = 2 * 2**20
"""The longest message; a node accepts no longer one."""

_QUEUED: Final = 64
_CLOSE_TIMEOUT_S: Final = 2.0


class LineReader:
    """Reads lines in a thread. It does not keep the process from ending."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_QUEUED)
        threading.Thread(target=self._read, name="vox-mesh-stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return the next line; `None` at the end. A line that is too long comes without its end."""
        line = await self._lines.get()
        self._room.release()
        return line

    def _read(self) -> None:
        with suppress(OSError, ValueError, RuntimeError):  # the source or the loop is closed
            while line := self._source.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    while (rest := self._source.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                        pass
                self._put(line)
        with suppress(RuntimeError):
            self._put(None)

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class LineWriter:
    """Writes lines in a thread, in the order in which they come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write, name="vox-mesh-stdout", daemon=True)
        self.is_broken = threading.Event()
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write a line; its end is added."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Write what is left, if the reader takes it."""
        self._lines.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            left = memoryview(line)
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self.is_broken.set()
                return


def take_stdout() -> int:
    """Return a descriptor of stdout for messages alone: what anything else prints goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor
