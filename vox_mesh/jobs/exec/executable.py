"""Executables: the hash of the file that a command runs, for its proof."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.proof import BLAKE3

MAX_BYTES: Final = 512 * 2**20
"""The largest executable that is hashed."""
MAX_S: Final = 5.0
"""The longest time that hashing may take, in seconds."""

_CHUNK_BYTES: Final = 2**20
_MAX_CACHED: Final = 1_024
_SETTLED_NS: Final = 2_000_000_000  # a file changed twice within a tick of its clock looks unchanged
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # do not wait for the writer of a named pipe


class FileIdentity(NamedTuple):
    """What changes when a file is replaced or written; `ctime_ns` can't be set by a program."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return the identity in the status of a file."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Executable(NamedTuple):
    """A file as it was when it was hashed."""

    path: Path
    identity: FileIdentity
    hash: str

    def is_unchanged(self) -> bool:
        """Return whether the path still leads to the same file, and it was not written since."""
        try:
            return FileIdentity.of(self.path.stat()) == self.identity
        except OSError:
            return False


class ExecutableHashes:
    """Hashes executables, each once until it changes. Threads may share it; its calls read the disk."""

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        max_s: float = MAX_S,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_s = max_s
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._cached = Recent[FileIdentity, str](_MAX_CACHED)

    def read(self, path: Path) -> Executable | None:
        """Hash a file; `None` if it can't be read, is too large, takes too long or changes meanwhile."""
        try:
            descriptor = os.open(path, _OPEN)
        except (OSError, ValueError):
            return None
        try:
            return self._read(path, descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _read(self, path: Path, descriptor: int) -> Executable | None:
        status, began_ns = os.fstat(descriptor), self._now_ns()
        identity = FileIdentity.of(status)
        with self._lock:
            known = self._cached.get(identity)
        if known is not None:
            return Executable(path, identity, known)
        if not stat.S_ISREG(status.st_mode) or identity.size > self._max_bytes:
            return None
        digest = self._digest(descriptor)
        if digest is None or FileIdentity.of(os.fstat(descriptor)) != identity:
            return None
        if began_ns - max(identity.ctime_ns, identity.mtime_ns) > _SETTLED_NS:
            with self._lock:
                self._cached[identity] = digest
        return Executable(path, identity, digest)

    def _digest(self, descriptor: int) -> str | None:
        digest, left = blake3(), self._max_bytes
        deadline = self._monotonic() + self._max_s
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            left -= len(chunk)
            if left < 0 or self._monotonic() > deadline:
                return None
            digest.update(chunk)
        return BLAKE3 + digest.hexdigest()
