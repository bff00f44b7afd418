"""The replica's file: pages of the primary, changed by whole transactions only.

A change is written to the redo file first, then to the pages, then to the mark. Cut off at any instant,
either the pages are still those of the mark or the redo file completes them. A digest of all pages, kept in
the mark, tells on opening whether that is so; what it can't explain is dropped and fetched again.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.store.replica.interruptions import Incomplete, Spoiled
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.wire import PAGE, WalFrame

_HEADER: Final = struct.Struct("<8s36sQQIIQQ")
_CHECK: Final = struct.Struct("<I")
_MAGIC: Final = b"VOXREDO1"
_ENTRIES_AT: Final = 128
_NUMBER: Final = struct.Struct("<I")
_ENTRY: Final = _NUMBER.size + PAGE
_PIECE: Final = 256
"""How many pages are read or written at a time."""

_KEEP_REDO: Final = 16 * 2**20
_DIGEST: Final = 2**64
_NO_PAGE: Final = bytes(PAGE)
_LOCK_PAGE: Final = 2**30 // PAGE + 1
"""The one page that SQLite never writes."""

_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Target(NamedTuple):
    """What the pages become when the redo file's entries are in their places."""

    next_frame: int
    size_after: int
    entries: int
    digest: int
    checksum: int


def _sum(page_number: int, page: bytes | memoryview) -> int:
    """A checksum that also depends on where the page lies."""
    return zlib.crc32(page, page_number)


class PageFile:
    """The pages and where in the primary's log they stand. All calls block; one thread at a time."""

    def __init__(self, path: Path, mark: Mark) -> None:
        self.path = path
        self._redo_path = Path(f"{path}.redo")
        self._mark = mark
        self._open()
        self._sums = array("I")
        self._pending: dict[int, int] = {}  # the checksums of the pages in the redo file
        self._entries = 0
        self._signature: tuple[int, int, int] | None = None

    def _open(self) -> None:
        file = os.open(self.path, _OPEN, 0o600)
        try:
            self._redo = os.open(self._redo_path, _OPEN, 0o600)
        except OSError:
            os.close(file)
            raise
        self._file = file

    @property
    def log_id(self) -> str:
        """Whose frames these are."""
        return self._mark.record.log_id

    @property
    def next_frame(self) -> int:
        """The number of the first frame that has not been applied."""
        return self._mark.record.next_frame

    @property
    def checksum(self) -> int:
        """That of the log up to there; 0 if it is not known."""
        return self._mark.record.checksum

    @property
    def entries(self) -> int:
        """How many pages wait to be applied."""
        return self._entries

    @property
    def size(self) -> int:
        """The size of the database in bytes."""
        return self._mark.record.pages * PAGE

    # --- opening ---------------------------------------------------------------------------------

    def recover(self) -> bool:
        """Check all pages, complete what was cut off; whether the file is what the mark says."""
        self._sums = array("I", (_sum(number, page) for number, page in self._read_pages()))
        record = self._mark.record
        if record.log_id and self._is(record.pages, record.digest):
            self._sign()
            return True
        target = self._read_header()
        if target is None:
            return False
        self._entries = target.entries
        self._replay(target.size_after)
        if not self._is(target.size_after, target.digest):
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

    def _is(self, pages: int, digest: int) -> bool:
        return (
            len(self._sums) == pages
            and os.fstat(self._file).st_size == pages * PAGE
            and sum(self._sums) % _DIGEST == digest
        )

    def start_over(self, log_id: str) -> None:
        """Drop all pages; what comes next are those of this log, from its first frame."""
        self._forget_position(log_id)
        self.forget_pending()
        self._sums = array("I")
        # New files: what lies at these paths now may be somebody else's doing.
        self.path.unlink(missing_ok=True)
        self._redo_path.unlink(missing_ok=True)
        old = self._file, self._redo
        self._open()  # if it fails we keep the old ones: closed, their numbers would be another file's
        for descriptor in old:
            os.close(descriptor)
        self._sign()

    def _forget_position(self, log_id: str) -> None:
        start_overs = self._mark.record.start_overs + (self.next_frame > 0)
        nothing = {"next_frame": 0, "pages": 0, "digest": 0, "checksum": 0, "session": "", "as_of_ms": 0}
        self._mark.update(log_id=log_id, start_overs=start_overs, **nothing)

    # --- applying --------------------------------------------------------------------------------

    def forget_pending(self) -> None:
        """Drop the beginning of a transaction whose end never came."""
        self._pending.clear()
        self._entries = 0

    def add(self, frames: Sequence[WalFrame]) -> None:
        """Keep frames of a transaction, or of several, until they are applied."""
        for start in range(0, len(frames), _PIECE):
            piece = frames[start : start + _PIECE]
            parts: list[bytes | memoryview] = []
            for _, page_number, _, page, _ in piece:
                parts += (_NUMBER.pack(page_number), page)
                self._pending[page_number] = _sum(page_number, page)
            _write(self._redo, b"".join(parts), _ENTRIES_AT + self._entries * _ENTRY)
            self._entries += len(piece)

    def add_older(self, frames: Sequence[WalFrame]) -> None:
        """The same for frames that come newest first: of each page, the first one counts."""
        newest: dict[int, WalFrame] = {}
        for frame in frames:
            if frame.page_number not in self._pending:
                newest.setdefault(frame.page_number, frame)
        self.add(list(newest.values()))

    def apply(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """Make what was added take effect: the frames before `next_frame`, a database of so many pages."""
        target = Target(next_frame, size_after, self._entries, self._digest_after(size_after), checksum)
        header = _HEADER.pack(_MAGIC, self.log_id.encode(), self.next_frame, *target)
        _write(self._redo, header + _CHECK.pack(zlib.crc32(header)), 0)
        self._replay(size_after)
        if any(self._sums[n - 1] != value for n, value in self._pending.items() if n <= size_after):
            raise Spoiled("the redo file was changed by somebody else")
        self._settle(target)

    def apply_snapshot(self, next_frame: int, size_after: int, checksum: int = 0) -> None:
        """The same for a snapshot, which must be whole: of an empty file it must bring every page."""
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
        # Pages that the database has grown by without writing them are holes in the file.
        digest += sum(_sum(n, _NO_PAGE) for n in range(known + 1, size_after + 1) if n not in self._pending)
        return digest % _DIGEST

    def _replay(self, size_after: int) -> None:
        """Copy the redo file's pages to where they belong."""
        sums = self._sums
        del sums[size_after:]
        sums.extend(_sum(number, _NO_PAGE) for number in range(len(sums) + 1, size_after + 1))
        for start in range(0, self._entries, _PIECE):
            count = min(_PIECE, self._entries - start)
            piece = memoryview(os.pread(self._redo, count * _ENTRY, _ENTRIES_AT + start * _ENTRY))
            if len(piece) < count * _ENTRY:
                return  # cut off by somebody else: the sums will tell
            pages: dict[int, memoryview] = {}
            for at in range(0, len(piece), _ENTRY):
                (number,) = _NUMBER.unpack_from(piece, at)
                if 0 < number <= size_after:
                    pages[number] = page = piece[at + _NUMBER.size : at + _ENTRY]
                    sums[number - 1] = _sum(number, page)
            for first, run in _runs(pages):
                _write(self._file, b"".join(run), (first - 1) * PAGE)
        os.ftruncate(self._file, size_after * PAGE)

    def _settle(self, target: Target) -> None:
        self._mark.update(
            next_frame=target.next_frame,
            pages=target.size_after,
            digest=target.digest,
            checksum=target.checksum,
        )
        if self._entries * _ENTRY > _KEEP_REDO:
            os.ftruncate(self._redo, 0)
        self.forget_pending()
        self._sign()

    def _read_header(self) -> Target | None:
        """What the redo file leads to, if it is whole and leads on from where the mark is."""
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
        """Date the file by its position: whoever else writes to it dates it to the present."""
        os.utime(self._file, (self.next_frame, self.next_frame))
        self._signature = _signature(os.fstat(self._file))

    @property
    def is_untouched(self) -> bool:
        """Whether the file at our path is ours, and as we left it."""
        try:
            return _signature(self.path.stat()) == self._signature
        except OSError:
            return False

    @property
    def is_unwritten(self) -> bool:
        """Whether our file is as we left it, wherever it lies now: enough for whoever has it open."""
        found = os.fstat(self._file)
        return (found.st_ino, found.st_size, found.st_mtime_ns) == self._signature

    def discard(self) -> None:
        """Give the disk space back; what there was can be fetched again."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._redo, 0)
        self._forget_position("")

    def close(self) -> None:
        """Close the files."""
        os.close(self._file)
        os.close(self._redo)


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _runs(pages: dict[int, memoryview]) -> Iterator[tuple[int, list[memoryview]]]:
    """Pages that lie side by side: the first one's number, and their contents."""
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
