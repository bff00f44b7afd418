"""The copy: the replica's file with its gate, taking in frames and answering queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from vox_mesh.errors import NoAnswer
from vox_mesh.store.engines.reader import QUICK_S, SLOW_S, LoopTurn, Reader, TooLong
from vox_mesh.store.engines.thread import SerialThread, to_the_end
from vox_mesh.store.replica.gate import Gate
from vox_mesh.store.replica.interruptions import Restarted, Spoiled
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.overtaken import OvertakenCopies
from vox_mesh.store.replica.pages import PageFile
from vox_mesh.store.replica.wire import WalFrame
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

T = TypeVar("T")

_INLINE_FRAMES: Final = 64
_SLOW_READS: Final = 2
"""How many long queries may keep changes waiting at the same time."""

_WAIT_S: Final = 0.05


class Copy:
    """What is short is done in the event loop's thread, the rest in others; the gate keeps them apart."""

    def __init__(self, path: Path, mark: Mark, overtaken: OvertakenCopies | None = None) -> None:
        self._overtaken = overtaken
        self._file = PageFile(path, mark)
        self._reader = Reader(path)
        self._gate = Gate()
        self._slow = asyncio.Semaphore(_SLOW_READS)
        self._thread = SerialThread("vox-mesh-replica")
        self._arrived = 0  # the number of the next frame to come in
        self._turn = LoopTurn()
        self.is_readable = False
        """Whether it holds a state of the primary that may be shown; whoever follows the log says so."""
        self.is_damaged = False
        """Whether somebody else has been at the file, or the primary's log is not the one it was."""
        self.is_checking = False
        """Whether the last frame is still to come once more, to see if it is the same log."""

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
    def is_changing(self) -> bool:
        """Whether pages are being written in another thread."""
        return self._gate.is_changing

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
        if self.log_id and self._overtaken is not None:
            await self._overtaken.keep_if_ahead()
        await self._change(lambda: self._file.start_over(log_id))
        self.is_damaged = self._reader.found_damage = False

    def expect(self, *, again: bool = False) -> int:
        """Forget what was not applied; the number of the frame that must come next.

        With `again`, the last one that was applied: it shows whether the log is still the one it was from.
        """
        self._file.forget_pending()
        self.is_checking = again and self._file.checksum != 0
        self._arrived = self.next_frame - self.is_checking
        return self._arrived

    async def take(self, frames: Sequence[WalFrame]) -> bool:
        """Take in the next frames of the log; whether a transaction among them was applied."""
        for frame in frames:
            if frame.number != self._arrived:
                raise NoAnswer(f"the log skipped from frame {self._arrived} to {frame.number}")
            self._arrived += 1
        if self.is_checking and frames:
            self._compare_past(frames[0])
            frames = frames[1:]
        is_short = self._file.entries + len(frames) <= _INLINE_FRAMES
        last = next((at for at in reversed(range(len(frames))) if frames[at].size_after), None)
        if last is None:
            if is_short:
                self._file.add(frames)
            else:
                await self._aside(lambda: self._file.add(frames))
            return False
        # Of a page that several of these transactions changed, only the last state counts.
        pages = {frame.page_number: frame for frame in frames[: last + 1]}

        def apply() -> None:
            self._refuse_if_touched()
            self._file.add(list(pages.values()))
            self._file.apply(frames[last].number + 1, frames[last].size_after, frames[last].checksum)
            self._file.add(frames[last + 1 :])

        await self._change(apply, inline=is_short)
        return True

    async def take_older(self, frames: Sequence[WalFrame]) -> None:
        """Take in pages of a snapshot, which come newest first: the frame to compare with comes last."""
        if self.is_checking and frames and frames[-1].number == self.next_frame - 1:
            self._compare_past(frames[-1])
        await self._aside(lambda: self._file.add_older(frames))

    def _compare_past(self, last: WalFrame) -> None:
        """Compare the primary's frame at the end of this copy with the copy's own."""
        self.is_checking = False
        if last.checksum != self._file.checksum:
            self._distrust()
            raise Restarted("the primary has another past than this copy")

    async def apply_snapshot(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """Apply the pages of a snapshot, once they are all there.

        Raises `Restarted` if the frame to compare with was not among them: a later one has replaced its page.
        """
        if self.is_checking:
            self._distrust()
            raise Restarted("the log does not go back to where this copy ends")

        def apply() -> None:
            self._refuse_if_touched()
            self._file.apply_snapshot(next_frame, size_after, checksum)

        await self._change(apply)
        self._arrived = next_frame

    def _refuse_if_touched(self) -> None:
        """Applying would make it look as we left it: what somebody else did to it must be seen before."""
        if not self._is_trusted():
            raise Restarted("the file was changed by somebody else")

    def _distrust(self) -> None:
        self.is_damaged = True
        self.is_readable = False

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do it in the thread, to the end: it can't be stopped in the middle."""
        return await to_the_end(self._thread.do(work))

    async def _change(self, work: Callable[[], T], *, inline: bool = False) -> T:
        """Change the file while nobody reads it."""
        try:
            if inline and self._gate.is_free:
                self._reader.invalidate()
                return work()
            async with self._gate.changing():
                self._reader.invalidate()
                return await self._aside(work)
        except Spoiled:
            self._distrust()
            raise

    # --- answering -------------------------------------------------------------------------------

    def read_now(self, statement: Statement) -> Rows | None:
        """Answer a query here and now, if that takes but a moment; `None`: it can't be done so."""
        if not self.is_readable or self._gate.is_changing or not self._turn.has_time:
            return None
        reader = self._reader
        if reader.is_slow(statement):
            return None
        reader.revalidate()
        was_open = reader.is_open
        try:
            rows = reader.query_inline(statement, QUICK_S)
        except TooLong:
            rows = None
        return rows if self._is_trusted(was_open) else None

    async def read(self, statement: Statement) -> Rows | None:
        """Answer a query from whole transactions; `None`: it is for the primary to answer."""
        if not self.is_readable:
            return None
        try:
            while not self._turn.has_time or self._gate.is_changing:
                async with asyncio.timeout(_WAIT_S):
                    await (self._gate.unchanging() if self._gate.is_changing else asyncio.sleep(0))
            rows = self.read_now(statement)
            if rows is not None or not self._reader.is_worth_a_thread(statement):
                return rows
            async with asyncio.timeout(_WAIT_S):
                await self._slow.acquire()
        except TimeoutError:
            return None
        try:
            if not self._reader.is_slow(statement):  # somebody else has found out meanwhile
                rows = self.read_now(statement)
            return await self._read_aside(statement) if rows is None else rows
        finally:
            self._slow.release()

    async def _read_aside(self, statement: Statement) -> Rows | None:
        async with self._gate.reading():
            if not self.is_readable:
                return None
            reading = asyncio.to_thread(self._reader.query_in_thread, statement, SLOW_S)
            rows: Rows | None = None
            with suppress(TooLong):
                rows = await to_the_end(asyncio.ensure_future(reading))
            return rows if self._is_trusted() else None

    def check(self) -> None:
        """See whether somebody else has been at the file."""
        if not self._gate.is_changing:
            self._is_trusted()

    def _is_trusted(self, has_it_open: bool = False) -> bool:
        """Whether the file is as we left it; for whoever `has_it_open`, it may lie elsewhere now."""
        is_ours = self._file.is_unwritten if has_it_open else self._file.is_untouched
        if not is_ours or self._reader.found_damage:
            self._distrust()
        return not self.is_damaged

    # --- the end ---------------------------------------------------------------------------------

    async def discard(self) -> None:
        """Give the disk space back."""
        await self._change(self._file.discard)

    async def close(self) -> None:
        """Close the file, when what is under way is done."""
        self.is_readable = False
        self._reader.close_connections()
        if await self._thread.stop():
            self._file.close()
