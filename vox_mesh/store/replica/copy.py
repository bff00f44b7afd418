"""Apply frames to the replica's file and answer queries from it, separated by a gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeVar

import orjson

from vox_mesh.errors import NoAnswer
from vox_mesh.store.engines.thread import SerialThread, to_the_end
from vox_mesh.store.replica.copy_reader import CopyReader
from vox_mesh.store.replica.gate import Gate, NoOtherReaders, OtherReaders
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.overtaken import OvertakenCopies
from vox_mesh.store.replica.pages import PageFile
from vox_mesh.store.replica.replica import Restarted, Spoiled
from vox_mesh.store.replica.table_pages import HEARTBEAT_TABLES, TablePages
from vox_mesh.store.replica.wire import WalFrame
from vox_mesh.store.script import Statement

T = TypeVar("T")

_INLINE_FRAMES: Final = 64
_ROOTS: Final = Statement(
    "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name IN (SELECT value FROM json_each(?))",
    (orjson.dumps(HEARTBEAT_TABLES).decode(),),
)


class Applied(IntEnum):
    """What frames of the log have changed."""

    NOTHING = 0
    """The transaction is not complete."""
    HEARTBEATS = 1
    """Rows of the tables that heartbeats change, and nothing else."""
    ANYTHING = 2


class Copy(CopyReader):
    """The replica's copy. Short work runs in the event loop's thread, longer work in other threads."""

    def __init__(
        self,
        path: Path,
        mark: Mark,
        overtaken: OvertakenCopies | None = None,
        others: OtherReaders | None = None,
    ) -> None:
        super().__init__(path)
        self._overtaken = overtaken
        self._others = NoOtherReaders() if others is None else others
        self._file = PageFile(path, mark)
        self._gate = Gate()
        self._thread = SerialThread("vox-mesh-replica")
        self._arrived = 0  # the number of the next frame to receive
        self._heartbeats = TablePages(self._file.read_page, self._heartbeat_roots)
        self.is_damaged = False
        """Whether another process has changed the file, or the primary's log is a different one."""
        self.is_checking = False
        """Whether the last applied frame must be received again, to verify that it is the same log."""

    @property
    def log_id(self) -> str:
        """Return the id of the log that the frames belong to."""
        return self._file.log_id

    @property
    def next_frame(self) -> int:
        """Return the number of the first frame that has not been applied."""
        return self._file.next_frame

    @property
    def arrived(self) -> int:
        """Return the number of the next frame to receive; earlier ones may not be applied yet."""
        return self._arrived

    @property
    def is_changing(self) -> bool:
        """Return whether pages are being written in another thread."""
        return self._gate.is_changing

    @property
    def inode(self) -> int:
        """Return the inode of the file."""
        return self._file.inode

    @property
    def size(self) -> int:
        """Return the size of the database in bytes."""
        return self._file.size

    # --- applying -------------------------------------------------------------------------------

    async def recover(self) -> bool:
        """Check the file, and complete an interrupted change. Return whether the file is usable."""
        if await self._run_in_thread(self._file.is_intact):  # other processes may read meanwhile
            return True
        return await self._change(self._file.complete_change)

    async def start_over(self, log_id: str) -> None:
        """Drop all pages, and start with the first frame of this log."""
        self.is_readable = False
        if self.log_id and self._overtaken is not None:
            await self._overtaken.keep_if_ahead()
        await self._change(lambda: self._file.start_over(log_id))
        self._heartbeats.forget()
        self.is_damaged = self._reader.found_damage = False

    def expect(self, *, again: bool = False) -> int:
        """Drop frames that were not applied, and return the number of the frame to request.

        With `again`, it is the last applied frame: it shows whether the log is still the same.
        """
        self._file.forget_pending()
        self.is_checking = again and self._file.checksum != 0
        self._arrived = self.next_frame - self.is_checking
        return self._arrived

    async def take(self, frames: Sequence[WalFrame]) -> Applied:
        """Add the next frames of the log. Return what was applied: complete transactions only."""
        for frame in frames:
            if frame.number != self._arrived:
                raise NoAnswer(f"the log skipped from frame {self._arrived} to {frame.number}")
            self._arrived += 1
        if self.is_checking and frames:
            self._verify_history(frames[0])
            frames = frames[1:]
        is_short = self._file.entries + len(frames) <= _INLINE_FRAMES
        last = next((at for at in reversed(range(len(frames))) if frames[at].size_after), None)
        if last is None:
            if is_short:
                self._file.add(frames)
            else:
                await self._run_in_thread(lambda: self._file.add(frames))
            return Applied.NOTHING
        # If several of these transactions changed a page, only its last state counts.
        pages = {frame.page_number: frame for frame in frames[: last + 1]}

        def apply() -> frozenset[int]:
            self._refuse_if_modified()
            self._file.add(list(pages.values()))
            changed = self._file.pending
            self._file.apply(frames[last].number + 1, frames[last].size_after, frames[last].checksum)
            self._file.add(frames[last + 1 :])
            return changed

        changed = await self._change(apply, inline=is_short)
        return Applied.HEARTBEATS if self._heartbeats.hold_all(changed) else Applied.ANYTHING

    def _heartbeat_roots(self) -> list[int] | None:
        """Return the root pages of the tables that heartbeats change, if all of them can be found now."""
        rows = self.read_now(_ROOTS)
        return None if rows is None or len(rows) < len(HEARTBEAT_TABLES) else [row[0] for row in rows]

    async def take_older(self, frames: Sequence[WalFrame]) -> None:
        """Add pages of a snapshot, which arrive newest first: the frame to compare with comes last."""
        if self.is_checking and frames and frames[-1].number == self.next_frame - 1:
            self._verify_history(frames[-1])
        await self._run_in_thread(lambda: self._file.add_older(frames))

    def _verify_history(self, last: WalFrame) -> None:
        """Compare the primary's frame at the end of this copy with the copy's own.

        Raises:
            Restarted: They differ.
        """
        self.is_checking = False
        if last.checksum != self._file.checksum:
            self._mark_damaged()
            raise Restarted("the primary has another past than this copy")

    async def apply_snapshot(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """Apply the pages of a complete snapshot.

        Raises:
            Restarted: The frame to compare with was not among them: a later frame has replaced its page.
        """
        if self.is_checking:
            self._mark_damaged()
            raise Restarted("the log does not go back to where this copy ends")

        def apply() -> None:
            self._refuse_if_modified()
            self._file.apply_snapshot(next_frame, size_after, checksum)

        await self._change(apply)
        self._heartbeats.forget()
        self._arrived = next_frame

    def _refuse_if_modified(self) -> None:
        """Raise `Restarted` if another process changed the file. Applying a change would hide that."""
        if not self._is_trusted():
            raise Restarted("the file was changed by another process")

    def _mark_damaged(self) -> None:
        self.is_damaged = True
        self.is_readable = False

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """Run the work in the thread, to its end: it can't be interrupted."""
        return await to_the_end(self._thread.do(work))

    async def _change(self, work: Callable[[], T], *, inline: bool = False) -> T:
        """Change the file while nothing reads it."""
        try:
            if inline and self._gate.is_free and self._others.try_exclude():
                try:
                    self._reader.invalidate()
                    return work()
                finally:
                    self._others.admit()
            async with self._gate.changing():
                try:
                    await self._others.exclude(self._file.announce_change)
                    self._reader.invalidate()
                    return await self._run_in_thread(work)
                finally:
                    self._file.end_announcement()
                    self._others.admit()
        except Spoiled:
            self._mark_damaged()
            raise

    # --- answering -------------------------------------------------------------------------------

    def _begin_read(self) -> bool:
        return not self._gate.is_changing

    def _end_read(self) -> None:
        """Do nothing: the event loop's thread has read, so nothing could change."""

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Callable[[], bool]]:
        async with self._gate.reading():
            yield self._is_trusted

    async def _wait_until_unchanged(self) -> None:
        await self._gate.wait_until_unchanged()

    def check(self) -> None:
        """Check whether another process has changed the file."""
        if not self._gate.is_changing:
            self._is_trusted()

    def _is_trusted(self, has_it_open: bool = False) -> bool:
        is_unchanged = self._file.is_unwritten if has_it_open else self._file.is_untouched
        if not is_unchanged or self._reader.found_damage:
            self._mark_damaged()
        return not self.is_damaged

    # --- closing ---------------------------------------------------------------------------------

    async def discard(self) -> None:
        """Free the disk space."""
        await self._change(self._file.discard)

    async def close(self) -> None:
        """Close the file after the current work."""
        self.is_readable = False
        self._reader.close_connections()
        if await self._thread.stop():
            self._file.close()
