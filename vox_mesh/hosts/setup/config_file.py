"""A configuration file: read within bounds, replaced atomically, and never outside of its folder."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vox_mesh.hosts.setup.documents.errors import DocumentRefused

_MAX_BYTES: Final = 1 << 20
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE: Final = 0o600


@dataclass(frozen=True)
class ConfigFile:
    """A file at `path` below the folder `root`.

    Symbolic links are followed if they stay below `root`, and everywhere if `follows_all`: a user may keep
    configuration files elsewhere, but a repository must not direct a write to another place.
    """

    root: Path
    path: Path
    follows_all: bool = False
    mode: int = _PRIVATE
    """The mode of a new file; one that exists keeps its own."""

    @property
    def target(self) -> Path:
        """The file that links lead to. Raises `DocumentRefused` if it is outside of `root`."""
        try:
            root, target = self.root.resolve(), self.path.resolve()
        except (OSError, RuntimeError) as error:
            raise DocumentRefused(f"{self.path} can't be used: {error}", hint="remove the link") from None
        if not self.follows_all and not target.is_relative_to(root):
            raise DocumentRefused(
                f"{self.path} must be in {root}, got a link to {target}",
                hint="remove the link: it may have come with the repository",
            )
        return target

    def read(self) -> str | None:
        """Return the text, or `None` if there is no file. Raises `DocumentRefused` if it can't be edited."""
        content = self._content()
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError:
            raise DocumentRefused(f"{self.path} must be UTF-8 text", hint="correct the file") from None

    def write(self, text: str, before: str | None) -> None:
        """Replace or make the file. Raises `DocumentRefused` if it has no longer the text `before`."""
        target = self.target
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise DocumentRefused(
                f"{self.path} can't hold a path that is not UTF-8", hint="rename the folder"
            ) from None
        with self._folder(target, makes=True) as folder:
            draft = f".{target.name}.{secrets.token_hex(8)}.new"
            descriptor = os.open(draft, _NEW_FLAGS, _PRIVATE, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    self._keep_owner(target.name, folder, file.fileno())
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._refuse_if_changed(before)
                os.rename(draft, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def remove(self, before: str) -> None:
        """Remove the file, and the folders below `root` that are empty then."""
        target = self.target
        self._refuse_if_changed(before)
        with self._folder(target) as folder:
            os.unlink(target.name, dir_fd=folder)
        for parent in self.path.parents:
            if parent == self.root:
                return
            try:
                parent.rmdir()
            except OSError:  # others have files there, or it is a link
                return

    def _content(self) -> bytes | None:
        target = self.target
        try:
            with self._folder(target) as folder:
                descriptor = os.open(target.name, _READ_FLAGS, dir_fd=folder)
                with os.fdopen(descriptor, "rb") as file:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        raise DocumentRefused(f"{self.path} must be a file", hint="move it away")
                    content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(content) > _MAX_BYTES:
            raise DocumentRefused(f"{self.path} must have at most {_MAX_BYTES} bytes", hint="shorten it")
        return content

    def _refuse_if_changed(self, before: str | None) -> None:
        if self.read() != before:
            raise DocumentRefused(f"{self.path} was changed meanwhile", hint="run the command again")

    @contextmanager
    def _folder(self, target: Path, *, makes: bool = False) -> Iterator[int]:
        """Open the folder of the target, step by step, so that no link can take the place of a folder."""
        base = Path(target.anchor) if self.follows_all else self.root.resolve()
        with ExitStack() as opened:
            try:
                folder = os.open(base, _FOLDER_FLAGS)
                opened.callback(os.close, folder)
                for name in target.parent.relative_to(base).parts:
                    folder = _enter(folder, name, makes=makes)
                    opened.callback(os.close, folder)
                yield folder
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._unusable(error) from None

    def _keep_owner(self, name: str, folder: int, new: int) -> None:
        """Give the new file the mode and owner of the one that it replaces."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            os.fchmod(new, self.mode)
            return
        with suppress(PermissionError):
            os.fchown(new, found.st_uid, found.st_gid)
        os.fchmod(new, stat.S_IMODE(found.st_mode))

    def _unusable(self, error: OSError) -> DocumentRefused:
        return DocumentRefused(
            f"{self.path} can't be used: {error.strerror or error}", hint="check the permissions of the file"
        )


def _enter(folder: int, name: str, *, makes: bool) -> int:
    """Open a folder in another one; the caller closes both."""
    if makes:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
