"""The copy: the replica's file with its gate, taking in frames and answering queries."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from vox_mesh.errors import NoAnswer
from vox_mesh.store.replica.gate import Gate
from vox_mesh.store.replica.interruptions import Restarted
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.pages import PageFile
from vox_mesh.store.replica.reader import QUICK_S, SLOW_S, Reader, TooLong
from vox_mesh.store.replica.wire import Frame
from vox_mesh.store.script import Statement
from vox_mesh.store.thread import SerialThread
from vox_mesh.store.values import Rows

T = TypeVar("T")

_INLINE_FRAMES: Final = 64


class Copy:
    """What is short is done in the event loop's thread, the rest in others; the gate keeps them apart."""

    def __init__(self, path: Path, mark: Mark) -> None:
        self._file = PageFile(path, mark)
        self._reader = Reader(path)
        self._gate = Gate()
        self._thread = SerialThread("vox-mesh-replica")
        self._arrived = 0  # the number of the next frame to come in
        self._turn_began_at: float | None = None  # when this turn of the event loop had its first read
        self.is_readable = False
        """Whether it holds a state of the primary that may be shown; whoever follows the log says so."""
        self.is_damaged = False
        """Whether somebody else has been at the file."""

    @property
    def log_id(self) -> str:
        """Whose frames these are."""
        return self._file.log_id

    @property
    def next_frame(self) -> int:
        """The number of the first frame that has not been applied."""
        return self._file.next_frame

    @property
    def arrived(self) -> int:
        """The number of the next frame to come in, applied or not."""
        return self._arrived

    @property
    def size(self) -> int:
        """The size of the database in bytes."""
        return self._file.size

    # --- taking in -------------------------------------------------------------------------------

    async def recover(self) -> bool:
        """Check what is there, and complete what was cut off; whether it can be used."""
        return await self._change(self._file.recover)

    async def start_over(self, log_id: str) -> None:
        """Drop everything, and begin with the first frame of this log."""
        self.is_readable = False
        await self._change(lambda: self._file.start_over(log_id))
        self.is_damaged = False

    def expect(self) -> int:
        """Forget what was not applied; the number of the frame that must come next."""
        self._file.forget_pending()
        self._arrived = self.next_frame
        return self._arrived

    async def take(self, frames: Sequence[Frame]) -> bool:
        """Take in the next frames of the log; whether a transaction among them was applied."""
        for frame in frames:
            if frame.number != self._arrived:
                raise NoAnswer(f"the log skipped from frame {self._arrived} to {frame.number}")
            self._arrived += 1
        last = next((at for at in reversed(range(len(frames))) if frames[at].size_after), None)
        if last is None:
            await self._aside(lambda: self._file.add(frames))
            return False
        # Of a page that several of these transactions changed, only the last state counts.
        pages = {frame.page_number: frame for frame in frames[: last + 1]}

        def apply() -> None:
            self._refuse_if_touched()
            self._file.add(list(pages.values()))
            self._file.apply(frames[last].number + 1, frames[last].size_after)
            self._file.add(frames[last + 1 :])

        await self._change(apply, inline=len(frames) <= _INLINE_FRAMES)
        return True

    async def take_older(self, frames: Sequence[Frame]) -> None:
        """Take in pages of a snapshot, which come newest first."""
        await self._aside(lambda: self._file.add_older(frames))

    async def apply_snapshot(self, next_frame: int, size_after: int) -> None:
        """Apply the pages of a snapshot, once they are all there."""

        def apply() -> None:
            self._refuse_if_touched()
            self._file.apply_snapshot(next_frame, size_after)

        await self._change(apply)
        self._arrived = next_frame

    def _refuse_if_touched(self) -> None:
        """Applying would make it look as we left it: what somebody else did to it must be seen before."""
        if not self._is_trusted():
            raise Restarted("the file was changed by somebody else")

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do it in the thread, to the end: it can't be stopped in the middle."""
        doing = self._thread.do(work)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise

    async def _change(self, work: Callable[[], T], *, inline: bool = False) -> T:
        """Change the file while nobody reads it."""
        if inline and self._gate.is_free:
            self._reader.forget()
            return work()
        async with self._gate.changing():
            self._reader.forget()
            return await self._aside(work)

    # --- answering -------------------------------------------------------------------------------

    async def read(self, statement: Statement) -> Rows | None:
        """Answer a query from whole transactions; `None`: it is for the primary to answer."""
        await self._give_way()
        while self._gate.is_changing:
            await self._gate.unchanging()
        if not self.is_readable:
            return None
        if not self._reader.is_long(statement):
            try:
                return self._trusted(lambda: self._reader.quickly(statement, QUICK_S))
            except TooLong:
                pass
        return await self._read_aside(statement)

    async def _give_way(self) -> None:
        """Let the event loop go on, when it has done nothing but read here for long enough.

        A quick read pauses nowhere: without this a loop of them would stop everything else, the log as well.
        """
        now = time.perf_counter()
        if self._turn_began_at is None:
            self._turn_began_at = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        elif now - self._turn_began_at > QUICK_S:
            await asyncio.sleep(0)

    def _end_turn(self) -> None:
        self._turn_began_at = None

    async def _read_aside(self, statement: Statement) -> Rows | None:
        async with self._gate.reading():
            if not self.is_readable:
                return None
            reading = partial(self._reader.slowly, statement, SLOW_S)
            try:
                return await asyncio.to_thread(self._trusted, reading)
            except TooLong:
                return None

    def _trusted(self, reading: Callable[[], Rows]) -> Rows | None:
        """What was read, if the file is as we left it."""
        try:
            rows = reading()
        except (sqlite3.Error, sqlite3.Warning):
            rows = None  # wrong, about the time, for a newer SQLite, a damaged page: the primary knows better
        return rows if self._is_trusted() else None

    def _is_trusted(self) -> bool:
        if not self._file.is_untouched:
            self.is_damaged = True
            self.is_readable = False
        return not self.is_damaged

    # --- the end ---------------------------------------------------------------------------------

    async def discard(self) -> None:
        """Give the disk space back."""
        await self._change(self._file.discard)

    async def close(self) -> None:
        """Close the file, when what is under way is done."""
        self._reader.forget()
        if await self._thread.stop():
            self._file.close()
