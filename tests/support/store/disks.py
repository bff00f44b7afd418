"""Disks on which there is no room, and then there is."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.chaos.disk import Disk as SmallDisk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one megabyte."""
    small = _mounted(tmp_path / "disk", "1m")
    if small is None:
        pytest.skip("this user may not mount a file system")
    yield small.folder
    small.unmount()


def _mounted(folder: Path, size: str) -> SmallDisk | None:
    if sys.platform != "linux":
        pytest.skip("a small disk is made of Linux's tmpfs")
    return SmallDisk.mounted(folder, size)


class Disk:
    """A disk that can be filled for one process: a small one, where this user may mount it.

    Elsewhere it is the process that may not write: no file of its own may be longer than it is.
    """

    def __init__(self, folder: Path, small: SmallDisk | None) -> None:
        self.folder = folder
        self._small = small

    def fill(self, pid: int) -> None:
        """Leave no room."""
        if self._small is None:
            self._limit(pid, 1)
        else:
            self._small.fill()

    def empty(self, pid: int) -> None:
        """Make room again."""
        if self._small is None:
            self._limit(pid, resource.RLIM_INFINITY)
        else:
            self._small.empty()

    @staticmethod
    def _limit(pid: int, size: int) -> None:
        assert sys.platform == "linux"
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk for one process."""
    folder = tmp_path / "disk"
    folder.mkdir()
    small = _mounted(folder, "8m")
    yield Disk(folder, small)
    if small is not None:
        small.unmount()
