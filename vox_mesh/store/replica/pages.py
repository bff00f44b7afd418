"""Store the replica's pages, and change them by complete transactions only.

A change is written to the redo file first, then to the pages, then to the mark. After a crash at any time,
either the pages still match the mark or the redo file completes them. A digest of all pages in the mark shows
on opening whether that is true; otherwise the copy is dropped and fetched again.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.store.files import open_private
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.replica import Incomplete, Spoiled
from vox_mesh.store.replica.wire import PAGE, WalFrame

_HEADER: Final = struct.Struct("<8s36sQQIIQQ")
_CHECK: Final = struct.Struct("<I")
_MAGIC: Final = b"VOXREDO1"
_ENTRIES_AT: Final = 128
_NUMBER: Final = struct.Struct("<I")
_ENTRY: Final = _NUMBER.size + PAGE
_PIECE: Final = 256
"""The number of pages read or written at a time."""

_MAX_REDO_BYTES: Final = 16 * 2**20
_DIGEST_MODULUS: Final = 2**64
_EMPTY_PAGE: Final = bytes(PAGE)
_NANOSECONDS: Final = 10**9
_LOCK_PAGE: Final = 2**30 // PAGE + 1
"""The one page that SQLite never writes."""

_GROWTH: Final = 256
"""The number of pages by which the file grows; what is not used yet is a hole.

SQLite learns the size of an immutable file only once. With room in it, a connection stays usable while the
database grows, and need not read the schema and prepare all queries again.
"""


class Target(NamedTuple):
    """The state of the pages after the redo file's entries are applied."""

    next_frame: int
    size_after: int
    entries: int
    digest: int
    checksum: int


def file_bytes(pages: int) -> int:
    """Return the size of the file of a database with this many pages."""
    return -(-pages // _GROWTH) * _GROWTH * PAGE


def is_size_of(pages: int, size: int) -> bool:
    """Return whether a file of such a database may have this size; older versions left no room in it."""
    return size in (pages * PAGE, file_bytes(pages))


def _checksum(page_number: int, page: bytes | memoryview) -> int:
    """Return a checksum of the page and its position."""
    return zlib.crc32(page, page_number)


class PageFile:
    """The pages and their position in the primary's log. All calls block; use one thread at a time."""

    def __init__(self, path: Path, mark: Mark) -> None:
        self.path = path
        self._redo_path = Path(f"{path}.redo")
        self._mark = mark
        self._open()
        self._sums = array("I")
        self._pending: dict[int, int] = {}  # the checksums of the pages in the redo file
        self._kept: dict[int, memoryview] = {}  # these pages if they are few, otherwise none
        self._entries = 0
        self._signature: tuple[int, int, int] | None = None

    def _open(self) -> None:
        file = open_private(self.path)
        try:
            self._redo = open_private(self._redo_path)
        except OSError:
            os.close(file)
            raise
        self._file = file

    @property
    def log_id(self) -> str:
        """Return the id of the log that the frames belong to."""
        return self._mark.record.log_id

    @property
    def next_frame(self) -> int:
        """Return the number of the first frame that has not been applied."""
        return self._mark.record.next_frame

    @property
    def checksum(self) -> int:
        """Return the checksum of the log up to there; 0 if unknown."""
        return self._mark.record.checksum

    @property
    def entries(self) -> int:
        """Return the number of pages to be applied."""
        return self._entries

    @property
    def pending(self) -> frozenset[int]:
        """Return the numbers of the pages to be applied."""
        return frozenset(self._pending)

    @property
    def inode(self) -> int:
        """Return the inode of the file."""
        return os.fstat(self._file).st_ino

    @property
    def size(self) -> int:
        """Return the size of the database in bytes."""
        return self._mark.record.pages * PAGE

    def read_page(self, number: int) -> bytes:
        """Return a page as it was last applied; empty if there is none."""
        return os.pread(self._file, PAGE, (number - 1) * PAGE)

    # --- opening ---------------------------------------------------------------------------------

    def recover(self) -> bool:
        """Check all pages, and complete an interrupted change. Return whether the file matches the mark."""
        return self.is_intact() or self.complete_change()

    def is_intact(self) -> bool:
        """Check all pages, without writing any. Return whether the file matches the mark."""
        record = self._mark.record
        found = array("I", (_checksum(number, page) for number, page in self._read_pages()))
        self._sums, room = found[: record.pages], found[record.pages :]
        is_room_empty = all(
            value == _checksum(number, _EMPTY_PAGE) for number, value in enumerate(room, record.pages + 1)
        )
        if not record.log_id or not is_room_empty or not self._matches(record.pages, record.digest):
            self._sums = found
            return False
        self._sign()
        return True

    def complete_change(self) -> bool:
        """Complete an interrupted change, after a check. Return whether the file matches the redo file."""
        target = self._read_header()
        if target is None:
            return False
        self.forget_pending()
        self._entries = target.entries
        self._replay(target.size_after)
        if not self._matches(target.size_after, target.digest):
            return False
        self._settle(target)
        return True

    def _read_pages(self) -> Iterator[tuple[int, memoryview]]:
        number = 0
        while piece := os.pread(self._file, _PIECE * PAGE, number * PAGE):
            view = memoryview(piece)
            for at in range(0, len(view), PAGE):
                number += 1
                yield number, view[at : at + PAGE]

    def _matches(self, pages: int, digest: int) -> bool:
        return (
            len(self._sums) == pages
            and is_size_of(pages, os.fstat(self._file).st_size)
            and sum(self._sums) % _DIGEST_MODULUS == digest
        )

    def start_over(self, log_id: str) -> None:
        """Drop all pages, and start with the first frame of this log."""
        self._forget_position(log_id)
        self.forget_pending()
        self._sums = array("I")
        # Create new files: another process may have replaced those at these paths.
        self.path.unlink(missing_ok=True)
        self._redo_path.unlink(missing_ok=True)
        old = self._file, self._redo
        self._open()  # if it fails, the old ones stay open: closed descriptors could be reused
        for descriptor in old:
            os.close(descriptor)
        self._sign()

    def _forget_position(self, log_id: str) -> None:
        start_overs = self._mark.record.start_overs + (self.next_frame > 0)
        nothing = {"next_frame": 0, "pages": 0, "digest": 0, "checksum": 0, "session": "", "as_of_ms": 0}
        self._mark.update(log_id=log_id, start_overs=start_overs, **nothing)

    # --- applying --------------------------------------------------------------------------------

    def forget_pending(self) -> None:
        """Drop the frames of an incomplete transaction."""
        self._pending.clear()
        self._kept.clear()
        self._entries = 0

    def add(self, frames: Sequence[WalFrame]) -> None:
        """Add frames of one or more transactions to the redo file."""
        for start in range(0, len(frames), _PIECE):
            piece = frames[start : start + _PIECE]
            parts: list[bytes | memoryview] = []
            for _, page_number, _, page, _ in piece:
                parts += (_NUMBER.pack(page_number), page)
                self._pending[page_number] = _checksum(page_number, page)
            entries = b"".join(parts)
            _write(self._redo, entries, _ENTRIES_AT + self._entries * _ENTRY)
            self._entries += len(piece)
            if self._entries <= _PIECE:
                self._kept.update(_pages_in(memoryview(entries)))  # what has arrived with them is not kept
            else:
                self._kept.clear()

    def add_older(self, frames: Sequence[WalFrame]) -> None:
        """Add frames that arrive newest first: of each page, only the first one counts."""
        newest: dict[int, WalFrame] = {}
        for frame in frames:
            if frame.page_number not in self._pending:
                newest.setdefault(frame.page_number, frame)
        self.add(list(newest.values()))

    def apply(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """Apply the added frames, all before `next_frame`; the database has `size_after` pages then."""
        target = Target(next_frame, size_after, self._entries, self._digest_after(size_after), checksum)
        header = _HEADER.pack(_MAGIC, self.log_id.encode(), self.next_frame, *target)
        _write(self._redo, header + _CHECK.pack(zlib.crc32(header)), 0)
        self._replay(size_after)
        if any(self._sums[n - 1] != value for n, value in self._pending.items() if n <= size_after):
            raise Spoiled("the redo file was changed by another process")
        self._settle(target)

    def apply_snapshot(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """Apply the added frames of a snapshot. For an empty file, it must contain every page."""
        found = sum(number <= size_after for number in self._pending)
        if not self.next_frame and found < size_after - (size_after >= _LOCK_PAGE):
            raise Incomplete(f"the snapshot has {found} of {size_after} pages")
        self.apply(next_frame, size_after, checksum)
        self._mark.update(snapshots=self._mark.record.snapshots + 1)

    def _digest_after(self, size_after: int) -> int:
        digest, sums, known = self._mark.record.digest, self._sums, len(self._sums)
        for number, value in self._pending.items():
            if number <= size_after:
                digest += value - (sums[number - 1] if number <= known else 0)
        digest -= sum(sums[size_after:])
        # New pages that were never written are holes in the file.
        digest += sum(
            _checksum(n, _EMPTY_PAGE) for n in range(known + 1, size_after + 1) if n not in self._pending
        )
        return digest % _DIGEST_MODULUS

    def _replay(self, size_after: int) -> None:
        """Copy the redo file's pages to their positions."""
        sums = self._sums
        is_shorter = len(sums) > size_after
        del sums[size_after:]
        sums.extend(_checksum(number, _EMPTY_PAGE) for number in range(len(sums) + 1, size_after + 1))
        for pages in self._redone(size_after):
            for first, run in _runs(pages):
                _write(self._file, b"".join(run), (first - 1) * PAGE)
        if is_shorter:
            os.ftruncate(self._file, size_after * PAGE)  # so that the room is empty
        os.ftruncate(self._file, file_bytes(size_after))

    def _redone(self, size_after: int) -> Iterator[dict[int, memoryview]]:
        """Yield the redo file's pages of a database of this size in pieces, and note their checksums."""
        if self._kept:
            pages = {number: page for number, page in self._kept.items() if number <= size_after}
            for number in pages:
                self._sums[number - 1] = self._pending[number]
            yield pages
            return
        for start in range(0, self._entries, _PIECE):
            count = min(_PIECE, self._entries - start)
            piece = memoryview(os.pread(self._redo, count * _ENTRY, _ENTRIES_AT + start * _ENTRY))
            if len(piece) < count * _ENTRY:
                return  # truncated by another process: the checksums will show it
            pages = {number: page for number, page in _pages_in(piece) if 0 < number <= size_after}
            for number, page in pages.items():
                self._sums[number - 1] = _checksum(number, page)
            yield pages

    def _settle(self, target: Target) -> None:
        self._mark.update(
            next_frame=target.next_frame,
            pages=target.size_after,
            digest=target.digest,
            checksum=target.checksum,
        )
        if self._entries * _ENTRY > _MAX_REDO_BYTES:
            os.ftruncate(self._redo, 0)
        self.forget_pending()
        self._sign()

    def _read_header(self) -> Target | None:
        """Return the target of the redo file, if it is complete and starts at the mark's position."""
        data = os.pread(self._redo, _HEADER.size + _CHECK.size, 0)
        header, check = data[: _HEADER.size], data[_HEADER.size :]
        if not header.startswith(_MAGIC) or check != _CHECK.pack(zlib.crc32(header)):
            return None
        _, log_id, base, *fields = _HEADER.unpack(header)
        target = Target(*fields)
        is_next = (log_id, base) == (self.log_id.encode(), self.next_frame)
        is_whole = os.fstat(self._redo).st_size >= _ENTRIES_AT + target.entries * _ENTRY
        return target if is_next and is_whole else None

    # --- trust -----------------------------------------------------------------------------------

    def _sign(self) -> None:
        """Set the file's time to its position: a write by another process would set the current time."""
        moment = time_of(self.next_frame)
        os.utime(self._file, ns=(moment, moment))
        self._signature = _signature(os.fstat(self._file))

    def announce_change(self) -> None:
        """Tell readers in other processes that a change is near, by a nanosecond more in the file's time."""
        if self.is_unwritten:  # the time of a foreign write must stay visible
            moment = time_of(self.next_frame) + 1
            os.utime(self._file, ns=(moment, moment))
            self._signature = _signature(os.fstat(self._file))

    def end_announcement(self) -> None:
        """Take an announcement back if no change has followed."""
        if self._signature is not None and self._signature[2] % _NANOSECONDS and self.is_unwritten:
            self._sign()

    @property
    def is_untouched(self) -> bool:
        """Return whether the file at the path is this one, and unchanged."""
        try:
            return _signature(self.path.stat()) == self._signature
        except OSError:
            return False

    @property
    def is_unwritten(self) -> bool:
        """Return whether the file is unchanged, even if moved: sufficient for a reader that has it open."""
        found = os.fstat(self._file)
        return (found.st_ino, found.st_size, found.st_mtime_ns) == self._signature

    def discard(self) -> None:
        """Free the disk space; the content can be fetched again."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._redo, 0)
        self.forget_pending()
        self._forget_position("")

    def close(self) -> None:
        """Close the files."""
        os.close(self._file)
        os.close(self._redo)


def time_of(next_frame: int) -> int:
    """Return the time of a file with the frames before `next_frame`, in nanoseconds."""
    return next_frame * _NANOSECONDS


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pages_in(entries: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the pages in these bytes of the redo file, each with its number."""
    for at in range(0, len(entries), _ENTRY):
        (number,) = _NUMBER.unpack_from(entries, at)
        yield number, entries[at + _NUMBER.size : at + _ENTRY]


def _runs(pages: dict[int, memoryview]) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield runs of adjacent pages: the number of the first, and their contents."""
    run: list[memoryview] = []
    first = 0
    for number in sorted(pages):
        if run and number == first + len(run):
            run.append(pages[number])
            continue
        if run:
            yield first, run
        first, run = number, [pages[number]]
    if run:
        yield first, run


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
