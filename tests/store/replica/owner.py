"""A replica's three files: a model of them, a process that owns them, and a disk that fails it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest

from tests.store.replica.frames import LOG, frame_of, page_of
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.pages import PageFile, file_bytes
from vox_mesh.store.replica.wire import WalFrame

NAME: Final = "copy"
FILES: Final = (NAME, f"{NAME}.redo", f"{NAME}.mark")


@dataclass(frozen=True)
class Transaction:
    """Pages with what they hold from then on, and the size of the database."""

    changes: tuple[tuple[int, int], ...]
    size_after: int

    def frames(self, first: int) -> list[WalFrame]:
        """As the log has them."""
        last = len(self.changes) - 1
        return [
            frame_of(first + at, number, self.size_after if at == last else 0, page_of(mark))
            for at, (number, mark) in enumerate(self.changes)
        ]


@dataclass(frozen=True)
class State:
    """What a file should hold: the byte that each page is full of, and its place in the log."""

    log_id: str = LOG
    marks: tuple[int, ...] = ()
    next_frame: int = 0

    def after(self, *transactions: Transaction) -> State:
        """The state once these are applied together."""
        size = transactions[-1].size_after
        marks = dict(enumerate(self.marks, 1))
        for transaction in transactions:
            marks |= dict(transaction.changes)
        frames = sum(len(transaction.changes) for transaction in transactions)
        return State(
            self.log_id, tuple(marks.get(n, 0) for n in range(1, size + 1)), self.next_frame + frames
        )

    @property
    def contents(self) -> bytes:
        """The file's bytes, with the empty room for further pages."""
        return b"".join(map(page_of, self.marks)).ljust(file_bytes(len(self.marks)), b"\0")


class Owner:
    """A process that owns the replica in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.mark = Mark.take(self.path, "pushed", "http://primary")
        self.file = PageFile(self.path, self.mark)

    @property
    def state(self) -> tuple[str, bytes, int]:
        """What there is on disk, and where the record says that is."""
        return self.file.log_id, self.path.read_bytes(), self.file.next_frame

    def is_at(self, *states: State) -> bool:
        """Whether that is one of these states."""
        return self.state in [(each.log_id, each.contents, each.next_frame) for each in states]

    def take(self, *transactions: Transaction) -> None:
        """Add these, and apply them together."""
        frames: list[WalFrame] = []
        for transaction in transactions:
            frames += transaction.frames(self.file.next_frame + len(frames))
        self.file.add(frames)
        self.file.apply(self.file.next_frame + len(frames), transactions[-1].size_after)

    def die(self) -> None:
        """Be gone as a killed process is: nothing more is written."""
        self.file.close()
        os.close(self.mark._descriptor)


@contextmanager
def owning(folder: Path) -> Iterator[Owner]:
    """Own the replica for a while."""
    owner = Owner(folder)
    try:
        yield owner
    finally:
        owner.die()


THREE: Final = Transaction(((1, 1), (2, 2), (3, 3)), 3)
MANY: Final = Transaction(tuple((number, number % 251 + 1) for number in range(1, 301)), 300)


class Killed(BaseException):
    """The process is gone."""


class Cut(Enum):
    """Where a system call is cut off."""

    BEFORE = "before"
    HALFWAY = "halfway"
    AFTER = "after"


class Disk:
    """The system calls that change something, cut off at the `at`-th; -1: they are only counted."""

    _NAMES: Final = ("pwrite", "ftruncate", "utime", "unlink")

    def __init__(self, at: int = -1, cut: Cut = Cut.BEFORE) -> None:
        self.calls = 0
        self.torn: int | None = None
        """The descriptor that was being written when it was cut off halfway."""
        self._at = at
        self._cut = cut

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Everything goes through here meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for name in self._NAMES:
                patch.setattr(os, name, self._through(name, getattr(os, name)))
            yield

    def _through(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            is_due, self.calls = self.calls == self._at, self.calls + 1
            if is_due and self._cut is Cut.HALFWAY and name == "pwrite":
                descriptor, data, offset = arguments
                self.torn = descriptor
                real(descriptor, data[: len(data) // 2], offset)
                raise Killed
            if is_due and self._cut is not Cut.AFTER:
                raise Killed
            result = real(*arguments, **options)
            if is_due:
                raise Killed
            return result

        return call
