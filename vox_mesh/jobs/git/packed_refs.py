"""Packed refs: create many refs of jobs in one file, where git would write a file and folders for each.

The file `packed-refs` is changed as git changes it: under its lock, sorted, and replaced as a whole. A ref
that is also a file of its own has the value of that file, so no ref of another process is ever hidden.
"""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from vox_mesh.errors import MeshError
from vox_mesh.store.files import publish

_HEADER: Final = b"# pack-refs with: peeled fully-peeled sorted \n"
_TRAITS: Final = (b"fully-peeled", b"sorted")
_MAX_BYTES: Final = 256 * 2**20
_LOCK_TIMEOUT_S: Final = 5.0
_LOCK_RETRY_S: Final = 0.01
_JOB_PARTS: Final = 4  # refs/gatos/jobs/<job-id>


class RefsChanged(MeshError):
    """A ref was changed by another process since it was read; of its job, nothing was written."""

    code = "git_refs_changed"
    retryable = True


def job_folder(name: str) -> str:
    """Return the folder that all refs of a job are in."""
    return "/".join(name.split("/", _JOB_PARTS)[:_JOB_PARTS])


class PackedRefs:
    """The file `packed-refs` of a repository whose refs are files. All calls block."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the git directory that all worktrees share."""
        self._folder = folder
        self._path = folder / "packed-refs"
        self._lock = folder / "packed-refs.lock"

    def loose(self, names: Iterable[str]) -> set[str]:
        """Return the folders of jobs that have files of their own, or locks: only git may change these."""
        return {folder for folder in {*map(job_folder, names)} if self._is_taken(folder)}

    def create(self, refs: Mapping[str, str]) -> bool:
        """Create refs, durably, all or none. Return false if the file is not one that this code can extend.

        Raises `RefsChanged` if one of them exists. If another process creates the same ref as a file at the
        same moment, that one counts, and `RefsChanged` is raised although the others were written.
        """
        with self._locked() as lock:
            lines = self._read()
            if lines is None:
                return False
            added = {
                name.encode(): b"%b %b\n" % (value.encode(), name.encode()) for name, value in refs.items()
            }
            if self.loose(refs) or not _are_free(sorted(lines), added.keys()):
                raise _changed("a ref exists already")
            lines |= added
            lock.write(_HEADER)
            lock.writelines(lines[name] for name in sorted(lines))
            lock.flush()
            publish(self._lock, self._path)
        # A process that had begun to create one of them when the file was replaced has not seen it there.
        loose = self.loose(refs)
        created = (name for name in refs if job_folder(name) in loose)
        if any(self._is_taken(name) or self._is_taken(f"{name}.lock") for name in created):
            raise _changed("another process created one of them at the same moment")
        return True

    def _is_taken(self, name: str) -> bool:
        try:
            os.lstat(self._folder / name)
        except FileNotFoundError:
            return False
        except NotADirectoryError:  # a ref has the name of one of its folders
            return True
        return True

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Hold the lock, whose file becomes the new `packed-refs` when it is renamed."""
        mode = stat.S_IMODE((self._folder / "HEAD").stat().st_mode) & 0o666  # as shared as git's own files
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                descriptor = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
                break
            except FileExistsError:
                if time.monotonic() >= deadline:
                    raise _changed(f"{self._lock} exists; remove it if no git process is running") from None
                time.sleep(_LOCK_RETRY_S)
        with os.fdopen(descriptor, "wb") as file:
            identity = os.fstat(descriptor)
            try:
                os.fchmod(descriptor, mode)
                yield file
            finally:
                with suppress(FileNotFoundError):  # it was renamed, and another process may have the lock
                    if os.path.samestat(self._lock.stat(), identity):
                        self._lock.unlink()

    def _read(self) -> dict[bytes, bytes] | None:
        """Return the lines of each ref by its name, or `None` if the file is of another form."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        except OSError:  # a link
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(_MAX_BYTES + 1)
        return None if len(content) > _MAX_BYTES else _parse(content)


def _parse(content: bytes) -> dict[bytes, bytes] | None:
    header, *rest = content.splitlines(keepends=True) or [b""]
    words = header.split()
    if not (header.startswith(b"# pack-refs with:") and all(trait in words for trait in _TRAITS)):
        return None
    lines: dict[bytes, bytes] = {}
    name = b""
    for line in rest:
        if line.startswith(b"^") and name:  # the object of the tag before it
            lines[name] += line
        else:
            name = line[:-1].partition(b" ")[2]
            if not name or not line.endswith(b"\n") or name in lines:
                return None
            lines[name] = line
    return lines


def _are_free(existing: Sequence[bytes], names: Iterable[bytes]) -> bool:
    """Return whether no ref has one of these names, or is a folder of one, or in such a folder."""
    taken = {*existing}
    for name in names:
        parts = name.split(b"/")
        if any(b"/".join(parts[:count]) in taken for count in range(2, len(parts) + 1)):
            return False
        place = bisect_left(existing, name + b"/")
        if place < len(existing) and existing[place].startswith(name + b"/"):
            return False
    return True


def _changed(reason: str) -> RefsChanged:
    return RefsChanged(
        f"the refs were not written: {reason}", hint="run it again when no other process writes them"
    )
