"""Blobs: files named by the hash of their content. A published file is complete."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from vox_mesh.errors import ArtifactDamaged, ArtifactNotKept, BadValue
from vox_mesh.model.documents.documents import HASH, is_hash, short
from vox_mesh.model.jobs.proof import BLAKE3, hash_of
from vox_mesh.store.files import make_private, publish, sync_folder

PIECE: Final = 2**20
"""The bytes of a file that are in memory at a time."""

_DRAFT_SUFFIX: Final = ".draft"
_LOCK: Final = ".lock"
_MAX_TRIES: Final = 8
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BlobStamp(NamedTuple):
    """The inode of a blob, and when it was published or used again."""

    inode: int
    modified_ns: int


class PendingBlob:
    """A file that is being written. It is locked, which distinguishes it from an abandoned one."""

    def __init__(self, folder: Path) -> None:
        descriptor, name = _locked_file(folder)
        self.path = Path(name)
        self._file = open(descriptor, "wb", buffering=0)  # noqa: PTH123, SIM115 - `discard` closes it

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def discard(self) -> None:
        """Close the file, and remove it unless it was published."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self._file.close()


def _locked_file(folder: Path) -> tuple[int, str]:
    for _ in range(_MAX_TRIES):
        descriptor, name = tempfile.mkstemp(_DRAFT_SUFFIX, "", folder)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), Path(name).stat()):
                return descriptor, name
        os.close(descriptor)  # another process removed it before it was locked
    raise OSError(errno.EAGAIN, "new files are removed there as soon as they are made")


class BlobStore:
    """A folder of blobs, created with the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder.absolute()

    def path_of(self, content_hash: str) -> Path:
        """Return the path of a blob, whether it exists or not."""
        if not is_hash(content_hash):
            raise BadValue(f"a hash must be {HASH}, got {short(content_hash)}")
        digits = content_hash.removeprefix(BLAKE3)
        return self.folder / digits[:2] / digits[2:]

    def draft(self) -> PendingBlob:
        """Create a new file to write to."""
        with self._translate_errors():
            if not self.folder.exists():
                make_private(self.folder)
                sync_folder(self.folder.parent)
            return PendingBlob(self.folder)

    def add(self, draft: PendingBlob, piece: bytes) -> None:
        """Append bytes to a draft."""
        with self._translate_errors():
            draft.write(piece)

    def put(self, draft: PendingBlob, content_hash: str) -> None:
        """Publish a draft with this content durably. An existing intact blob stays."""
        path = self.path_of(content_hash)
        with self._translate_errors(), _locked(self.folder, fcntl.LOCK_SH):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if _is_intact(path, content_hash):
                os.utime(path)  # it is used again: see `remove`
                sync_folder(path.parent)
            else:
                publish(draft.path, path)
            sync_folder(self.folder)

    def verified_path(self, content_hash: str) -> Path | None:
        """Return the file with this content, or `None`. Raises `ArtifactDamaged` if its hash is wrong."""
        path = self.path_of(content_hash)
        try:
            actual = _hash_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from None
        if actual != content_hash:
            raise _damaged(path, actual)
        return path

    def read(self, content_hash: str, limit: int) -> bytes | None:
        """Return the content, or `None` if it is not here.

        Raises `ArtifactDamaged` if its hash is wrong, and `BadValue` if it is larger than `limit` bytes.
        """
        path = self.path_of(content_hash)
        try:
            with path.open("rb") as file:
                body = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from None
        if len(body) > limit:
            raise BadValue(f"{content_hash} is larger than {limit} bytes", hint="read its file in parts")
        if (actual := hash_of(body)) != content_hash:
            raise _damaged(path, actual)
        return body

    def stamp(self, content_hash: str) -> BlobStamp | None:
        """Return what changes whenever a blob is published or used again; `None` if there is no such blob."""
        try:
            found = self.path_of(content_hash).stat()
        except OSError:
            return None
        return BlobStamp(found.st_ino, found.st_mtime_ns)

    def remove(self, content_hash: str, stamp: BlobStamp) -> bool:
        """Remove a blob, and return whether it is gone; one that was used since it had this stamp stays."""
        with suppress(OSError), _locked(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if self.stamp(content_hash) == stamp:
                self.path_of(content_hash).unlink()
                return True
        return False

    def sweep(self) -> int:
        """Remove drafts whose process has ended, and return their number."""
        return sum(map(_remove_if_abandoned, self.folder.glob(f"*{_DRAFT_SUFFIX}")))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in _NO_ROOM
            raise ArtifactNotKept(
                f"an artifact can't be kept in {self.folder}: {error.strerror}",
                hint="free some disk space" if is_full else "VOX_MESH_HOME must be a folder of this user",
            ) from None


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    """Hold the lock of a folder: shared to publish, exclusive to remove."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _hash_file(path: Path) -> str:
    hasher = blake3()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            hasher.update(piece)
    return BLAKE3 + hasher.hexdigest()


def _is_intact(path: Path, content_hash: str) -> bool:
    try:
        return _hash_file(path) == content_hash
    except OSError:
        return False


def _remove_if_abandoned(draft: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()  # while it is locked, so that no other process writes to it
        finally:
            os.close(descriptor)
        return True
    return False


def _damaged(path: Path, actual: str) -> ArtifactDamaged:
    return ArtifactDamaged(
        f"the file {path} was damaged: its content is {actual} now",
        hint="remove the file, and retry its job to create it again",
    )


def _unreadable(path: Path, error: OSError) -> ArtifactDamaged:
    return ArtifactDamaged(f"the file {path} can't be read: {error.strerror}", hint="check the disk")
