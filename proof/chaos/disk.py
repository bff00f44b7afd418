"""A small disk that can be filled to the last byte, where this user may mount one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_PIECE: Final = bytes(4_096)
_FILLER: Final = "filler"


class Disk:
    """A file system in memory, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / _FILLER

    @classmethod
    def mounted(cls, folder: Path, size: str) -> Disk | None:
        """Mount a disk of that size; return `None` where that is not possible."""
        if sys.platform != "linux":
            return None
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(mount, capture_output=True, check=False)
        except OSError:
            return None
        return cls(folder) if done.returncode == 0 else None

    def fill(self) -> None:
        """Fill it."""
        room = os.statvfs(self.folder)
        with self._filler.open("wb", buffering=0) as filler:
            try:
                if sys.platform == "linux" and room.f_bavail:
                    os.posix_fallocate(filler.fileno(), 0, room.f_bavail * room.f_frsize)
                filler.seek(0, os.SEEK_END)
                while True:
                    filler.write(_PIECE)
            except OSError:
                return

    def empty(self) -> None:
        """Free the space again."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmount it, with everything on it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
