"""Disks on which there is no room, and then there is."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_PIECE: Final = bytes(4_096)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _is_mounted(folder, "1m"):
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _is_mounted(folder: Path, size: str) -> bool:
    if sys.platform != "linux":
        pytest.skip("a small disk is made of Linux's tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


class Disk:
    """A disk that can be filled for one process: a small one, where this user may mount it.

    Elsewhere it is the process that may not write: no file of its own may be longer than it is.
    """

    def __init__(self, folder: Path, is_small: bool) -> None:
        self.folder = folder
        self._filler = folder / "filler" if is_small else None

    def fill(self, pid: int) -> None:
        """Leave no room."""
        if self._filler is None:
            self._limit(pid, 1)
            return
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(_PIECE)
            except OSError:
                return

    def empty(self, pid: int) -> None:
        """Make room again."""
        if self._filler is None:
            self._limit(pid, resource.RLIM_INFINITY)
        else:
            self._filler.unlink()

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
    is_small = _is_mounted(folder, "8m")
    yield Disk(folder, is_small)
    if is_small:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
