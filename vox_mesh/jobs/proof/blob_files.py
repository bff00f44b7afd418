"""Shelves: files by the hash of their content. What stands under its name is whole, or was damaged later."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from vox_mesh.errors import ArtifactDamaged, ArtifactNotKept, BadValue
from vox_mesh.model.documents.json_shapes import HASH, is_hash, short
from vox_mesh.model.jobs.proof import BLAKE3, hash_of
from vox_mesh.store.files import make_private, publish, sync_folder

PIECE: Final = 2**20
"""How many bytes of a file are in memory at a time."""

_DRAFT: Final = ".draft"
_TRIES: Final = 8
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PendingBlob:
    """A file that is being written. It is locked, so that others can tell it from what was left behind."""

    def __init__(self, folder: Path) -> None:
        descriptor, name = _locked_file(folder)
        self.path = Path(name)
        self._file = open(descriptor, "wb", buffering=0)  # noqa: PTH123, SIM115 - it is closed by `discard`

    def write(self, piece: bytes) -> None:
        """Add to it."""
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def discard(self) -> None:
        """Close it, and remove it unless it has got its place."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self._file.close()


def _locked_file(folder: Path) -> tuple[int, str]:
    for _ in range(_TRIES):
        descriptor, name = tempfile.mkstemp(_DRAFT, "", folder)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), Path(name).stat()):
                return descriptor, name
        os.close(descriptor)  # it was swept away before we had locked it
    raise OSError(errno.EAGAIN, "new files are removed there as soon as they are made")


class BlobStore:
    """The folder of the files. It is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder.absolute()

    def place(self, content_hash: str) -> Path:
        """Where a content is, if it is here."""
        if not is_hash(content_hash):
            raise BadValue(f"{short(content_hash)} is no hash", hint=f"it is {HASH}")
        digits = content_hash.removeprefix(BLAKE3)
        return self.folder / digits[:2] / digits[2:]

    def draft(self) -> PendingBlob:
        """A new file to write to."""
        with self._told():
            if not self.folder.exists():
                make_private(self.folder)
                sync_folder(self.folder.parent)
            return PendingBlob(self.folder)

    def add(self, draft: PendingBlob, piece: bytes) -> None:
        """Write to a draft."""
        with self._told():
            draft.write(piece)

    def put(self, draft: PendingBlob, content_hash: str) -> None:
        """Give a draft with this content its place, for good. What stands there whole stays."""
        place = self.place(content_hash)
        with self._told():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if _is_whole(place, content_hash):
                sync_folder(place.parent)
            else:
                publish(draft.path, place)
            sync_folder(self.folder)

    def checked(self, content_hash: str) -> Path | None:
        """The file with this content, if there is one and nobody damaged it."""
        place = self.place(content_hash)
        try:
            found = _hash_at(place)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(place, error) from None
        if found != content_hash:
            raise _damaged(place, found)
        return place

    def read(self, content_hash: str, limit: int) -> bytes | None:
        """What that file holds."""
        place = self.place(content_hash)
        try:
            with place.open("rb") as file:
                body = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(place, error) from None
        if len(body) > limit:
            raise BadValue(
                f"{content_hash} is larger than {limit} bytes", hint="read its file piece by piece"
            )
        if (found := hash_of(body)) != content_hash:
            raise _damaged(place, found)
        return body

    def sweep(self) -> int:
        """Remove drafts whose process is gone; how many there were."""
        return sum(map(_swept, self.folder.glob(f"*{_DRAFT}")))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            no_room = error.errno in _NO_ROOM
            raise ArtifactNotKept(
                f"an artifact can't be kept in {self.folder}: {error.strerror}",
                hint="free some disk space" if no_room else "VOX_MESH_HOME must be a folder of this user",
            ) from None


def _hash_at(place: Path) -> str:
    hasher = blake3()
    with place.open("rb") as file:
        while piece := file.read(PIECE):
            hasher.update(piece)
    return BLAKE3 + hasher.hexdigest()


def _is_whole(place: Path, content_hash: str) -> bool:
    try:
        return _hash_at(place) == content_hash
    except OSError:
        return False  # then it is replaced


def _swept(draft: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()  # while we have it locked: nobody can be writing to it
        finally:
            os.close(descriptor)
        return True
    return False


def _damaged(place: Path, found: str) -> ArtifactDamaged:
    return ArtifactDamaged(
        f"the file {place} was damaged: its content is {found} now",
        hint="remove it; a run of the same job makes it anew",
    )


def _unreadable(place: Path, error: OSError) -> ArtifactDamaged:
    return ArtifactDamaged(f"the file {place} can't be read: {error.strerror}", hint="check the disk")
