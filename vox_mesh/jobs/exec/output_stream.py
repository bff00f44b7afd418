"""The output of a process group: read while the group runs, without the secrets that it was given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from io import FileIO
from typing import Final

from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.jobs.exec.secrets import Redactor
from vox_mesh.store.engines.thread import to_the_end

_CHUNK_BYTES: Final = 65_536
_MAX_PIPE_BYTES: Final = 1 << 20
"""The maximum capacity of a pipe."""


class PipeFailed(Exception):
    """No pipe can be made; the message is one line that says why."""


class OutputStream:
    """An output stream of a group; a piece is read when the previous one has been processed."""

    def __init__(self, pass_on: Callable[[bytes], Awaitable[None]], secrets: Iterable[str]) -> None:
        self._pass_on = pass_on
        self._redactor = Redactor(secrets)
        self._is_over = False
        self._ready: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def read_while(self, group: ProcessGroup) -> AsyncIterator[int]:
        """Yield the write end of a pipe that is read while the group runs; a failed read ends the group."""

        def end_if_failed(reader: asyncio.Task[None]) -> None:
            if reader.cancelled() or reader.exception() is not None:
                group.end()

        read_end, write_end = make_pipe()
        os.set_blocking(read_end.fileno(), False)
        with read_end, write_end:
            self._reader = reader = asyncio.create_task(self._read(read_end), name="vox-mesh-output")
            reader.add_done_callback(end_if_failed)
            try:
                yield write_end.fileno()
            finally:
                await self.finish()
            reader.result()

    async def finish(self) -> None:
        """Read what is left in the pipe once the group has ended, and stop reading."""
        self._is_over = True
        self._wake()
        if self._reader is not None:
            await to_the_end(asyncio.gather(self._reader, return_exceptions=True))

    async def _read(self, pipe: FileIO) -> None:
        """Read until the group has ended, and then what is left in the pipe.

        Do not wait for the end of the stream: a process that left the group may keep it open.
        """
        left = _MAX_PIPE_BYTES
        while left > 0:
            if not self._is_over:
                await self._wait_readable(pipe)
            chunk = pipe.read(_CHUNK_BYTES)
            if chunk:
                left -= len(chunk) if self._is_over else 0
                await self._pass_unless_empty(self._redactor.redact(chunk))
            elif self._is_over:
                break
        await self._pass_unless_empty(self._redactor.rest())

    async def _pass_unless_empty(self, chunk: bytes) -> None:
        if chunk:
            await self._pass_on(chunk)

    async def _wait_readable(self, pipe: FileIO) -> None:
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        loop.add_reader(pipe, self._wake)
        try:
            await self._ready
        finally:
            loop.remove_reader(pipe)

    def _wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)


def make_pipe() -> tuple[FileIO, FileIO]:
    """Return the read end and the write end of a new pipe. Raises `PipeFailed`."""
    try:
        read_end, write_end = os.pipe()
    except OSError as error:
        raise PipeFailed(f"no pipe can be made to read from: {error.strerror}") from error
    return FileIO(read_end, "rb"), FileIO(write_end, "wb")
