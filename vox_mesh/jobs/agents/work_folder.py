"""Work folders: one for each attempt of an agent, removed at its end, or by the next one after a crash."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.ownership import ownership_fault, ownership_hint

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[0-9A-Za-z]{1,64}-[0-9]{1,19}")
_LOCK: Final = ".lock"
_PARKED: Final = "parked"
"""The file in a folder that waits for an answer."""
_TRAVERSED: Final = 0o711  # agents with a user of their own reach their folder, and can't list the others
_PRIVATE: Final = 0o700


class WorkFolder:
    """The folder of one attempt: `work` for the agent, and `home` if it has none. Blocking: use a thread."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self.is_reused = (path / _PARKED).exists()
        """Whether it has what an earlier attempt left there before it asked a question."""
        with suppress(FileNotFoundError):
            (path / _PARKED).unlink()
        for each in (self.work, self.home):
            with suppress(FileExistsError):
                each.mkdir(_PRIVATE)
        self._identity = _identity(self.work)

    @property
    def name(self) -> str:
        """Return its name below the folder of all."""
        return self.path.name

    @property
    def work(self) -> Path:
        """Return where the agent works."""
        return self.path / "work"

    @property
    def home(self) -> Path:
        """Return an empty home."""
        return self.path / "home"

    def give_to(self, uid: int, gid: int) -> None:
        """Make what is in a new folder belong to the agent's user, but not the folder itself."""
        trees = (each for top in (self.work, self.home) for each in os.walk(top))
        for folder, _, files in trees:
            for each in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118 - many
                os.chown(each, uid, gid, follow_symlinks=False)

    def fault(self, uid: int) -> str | None:
        """Return why the worker must not read it any more: an agent may lead it to files of others.

        `uid`: the user of the agent.
        """
        if self._identity is None or _identity(self.work) != self._identity:
            return "the work folder was replaced"
        if uid != os.geteuid() and any(each.st_uid != uid for each in _statuses(self.work)):
            return "the work folder has files of another user"
        return None

    def park(self) -> None:
        """Leave it for the attempt that gets the answer."""
        (self.path / _PARKED).touch()
        os.close(self._lock)

    def end(self, *, keep: bool) -> None:
        """Remove it, or keep it for people."""
        if not keep:
            remove_tree(self.path)
        with suppress(FileNotFoundError):
            self.path.with_name(self.name + _LOCK).unlink()
        os.close(self._lock)


class WorkFolders:
    """The folders of all attempts of a worker's agent, below one folder that others can't write."""

    def __init__(self, base: Path | None, now_s: Callable[[], float] = time.time) -> None:
        self._base = base
        self._now_s = now_s

    @property
    def base(self) -> Path:
        """Return the folder of all."""
        return self._base or Path(tempfile.gettempdir()) / f"vox-mesh-agents-{os.geteuid()}"

    def open(self, name: str, parked: str | None = None) -> WorkFolder:
        """Return a new folder, or the parked one if it is still there. Raises `BadSettings`."""
        base = self._checked_base()
        if parked is not None and _NAME.fullmatch(parked) and _is_parked(base / parked):
            lock = _try_lock(base / f"{parked}{_LOCK}")
            if lock is not None:
                return WorkFolder(base / parked, lock)
        lock = _try_lock(base / f"{name}{_LOCK}")
        if lock is None:
            raise BadSettings(
                f"work folder {base / name} is in use by another process", hint="give each worker its own"
            )
        path = base / name
        remove_tree(path)  # of an earlier process that was killed
        path.mkdir(_TRAVERSED)
        return WorkFolder(path, lock)

    def sweep(self, max_parked_s: float) -> int:
        """Remove what killed workers have left, and what has waited for too long. Return how many."""
        removed = 0
        for lock_file in list(self.base.glob(f"*{_LOCK}")):
            path = lock_file.with_name(lock_file.name.removesuffix(_LOCK))
            if not _NAME.fullmatch(path.name) or (lock := _try_lock(lock_file)) is None:
                continue
            with suppress(FileNotFoundError):
                if (path / _PARKED).stat().st_mtime > self._now_s() - max_parked_s:
                    os.close(lock)
                    continue
            WorkFolder(path, lock).end(keep=False)
            removed += 1
        return removed

    def _checked_base(self) -> Path:
        """Create the folder of all if needed. Raises `BadSettings` if others could write there."""
        base = self.base
        with suppress(FileExistsError):
            base.mkdir(_TRAVERSED, parents=True)
        status = base.lstat() if self._base is None else base.stat()
        if (fault := ownership_fault(base, status)) is not None or not base.is_dir():
            raise BadSettings(
                f"folder of agents: {fault or f'{base} is no folder'}", hint=ownership_hint(base, status)
            )
        return base.resolve()


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it, also folders that are read-only. Links are not followed."""

    def make_writable(function: Callable[..., Any], failed: str, _: object) -> None:
        parent = Path(failed).parent
        with suppress(OSError):
            if not parent.is_symlink() and parent.is_relative_to(path):
                parent.chmod(_PRIVATE)
                if not Path(failed).is_symlink() and Path(failed).is_dir():
                    Path(failed).chmod(_PRIVATE)
                    shutil.rmtree(failed, ignore_errors=True)
                else:
                    Path(failed).unlink()

    shutil.rmtree(path, onerror=make_writable)
    shutil.rmtree(path, ignore_errors=True)  # folders that were not empty at first
    if path.exists():
        _log.warning("work folder not removed: path=%s", path)


def _is_parked(path: Path) -> bool:
    """Return whether a folder waits for an answer, and is as its worker made it."""
    folder = path / "work"
    return (path / _PARKED).exists() and _identity(folder) is not None


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what stays the same while a folder is not replaced, or `None` if it is none."""
    try:
        status = folder.lstat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    """Yield what is in a folder; links are not followed."""
    for place, _, files in os.walk(folder):
        yield from (os.lstat(os.path.join(place, name)) for name in (".", *files))  # noqa: PTH118 - many


def _try_lock(path: Path) -> int | None:
    """Return the open, locked file, or `None` if another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:  # otherwise its owner has just removed it
            return file
    except OSError:
        pass
    os.close(file)
    return None
