"""A readers-writer lock between processes: reads hold it shared, the follower alone while pages change.

It is held by the kernel for a process, so none outlives its holder. A reader that is paused while it reads
delays a change for a quarter of a second at most. So a reader checks after each read that the file is as it
was before: the lock prevents wasted reads, and the check wrong ones.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vox_mesh.store.files import open_private

RETRY_S: Final = 0.0003
_MAX_WAIT_S: Final = 0.25
"""How long a change waits for reads; a usual one ends within 0.1 s."""


class ReaderLock:
    """The lock of one shared copy. A holder has one of its own, since each holds it once."""

    def __init__(self, path: Path) -> None:
        """`path` is that of the copy."""
        self._descriptor: int | None = open_private(Path(f"{path}.readers"))

    def try_read(self) -> bool:
        """Hold the lock for a read, unless pages change. Return whether it is held."""
        return self._try_lock(fcntl.LOCK_SH)

    def try_exclude(self) -> bool:
        """Hold off readers if none is reading. Return whether they are held off."""
        return self._try_lock(fcntl.LOCK_EX)

    async def exclude(self, announce: Callable[[], None]) -> None:
        """Hold off readers, once their reads have ended. `announce` asks them to begin no others."""
        if self.try_exclude():
            return
        announce()  # otherwise there might always be one that reads
        deadline = time.monotonic() + _MAX_WAIT_S
        while not self.try_exclude() and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(RETRY_S)

    def admit(self) -> None:
        """Let readers read again."""
        self.release()

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the lock, and close its file: reads that wait for it do not get it any more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _try_lock(self, kind: int) -> bool:
        if self._descriptor is None:
            return False
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
