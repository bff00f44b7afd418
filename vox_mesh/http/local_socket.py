"""The unix socket of a node: requests of the same user, authenticated by the system instead of a token."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Any, Final

from vox_mesh.nodes.node_sockets import FILE

_log = logging.getLogger(__name__)

_WITHOUT: Final = "local commands use the token in VOX_MESH_HOME"
MAX_PATH_BYTES: Final = 107
"""The longest path of a socket: 108 bytes, with the null byte at its end."""

_CREDENTIALS: Final = struct.Struct("3i")
_MAC_CREDENTIALS: Final = struct.Struct("=IIhxx16I")
"""The `xucred` of macOS: its version, the user, and the groups."""

_MAC_LEVEL: Final = 0
_MAC_OPTION: Final = 1
_OTHER_USERS: Final = 0o077


class LocalSocket:
    """A socket in a folder that only this user can enter. Where there can't be one, the node has none."""

    def __init__(self, folder: Path, name: str = FILE, without: str = _WITHOUT) -> None:
        """`without` says for the log what happens where there can't be one."""
        self.path = folder.absolute() / name
        self._without = without
        self._inode: int | None = None

    def listen(self, backlog: int) -> socket.socket | None:
        """Return the listening socket, or log why there is none.

        The caller holds the slot of the folder, so an existing socket is of a process that has ended.
        """
        size = len(os.fsencode(self.path))
        if size > MAX_PATH_BYTES:
            self._log_absent(f"its path has {size} bytes, {MAX_PATH_BYTES} are possible")
            return None
        if not _tells_users():
            self._log_absent("this system does not tell who connects")
            return None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._prepare_folder()
            draft = self.path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            listening.bind(str(draft))
            self._let_in(draft)
            listening.listen(backlog)
            draft.rename(self.path)  # replaces what has this name, also a link, and follows none
            self._inode = self.path.lstat().st_ino
        except OSError as error:
            listening.close()
            self._log_absent(error.strerror or str(error))
            return None
        listening.setblocking(False)
        return listening

    def _prepare_folder(self) -> None:
        """Make the folder safe for the socket. Raises `OSError` if it can't be."""
        _make_private(self.path.parent)

    def _let_in(self, draft: Path) -> None:
        """Let those who may connect do so; this user alone."""
        draft.chmod(0o600)

    def _log_absent(self, reason: str) -> None:
        _log.warning("no local socket at %s: %s; %s", self.path, reason, self._without)

    def remove(self) -> None:
        """Remove the socket, unless it was replaced."""
        try:
            if self._inode is not None and self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            _log.debug("local socket not removed: path=%s", self.path)


def _make_private(folder: Path) -> None:
    """Close the folder to other users; raise `OSError` if it is a link or of another user."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise PermissionError(0, "the folder is of another user")
        if stat.S_IMODE(found.st_mode) & _OTHER_USERS:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def peer_user(transport: asyncio.BaseTransport) -> int | None:
    """Return the user at the other end of a unix socket; `None` for other connections."""
    connected: Any = transport.get_extra_info("socket")
    if connected is None or connected.family != socket.AF_UNIX:
        return None
    if sys.platform == "darwin":
        return int(
            _MAC_CREDENTIALS.unpack(connected.getsockopt(_MAC_LEVEL, _MAC_OPTION, _MAC_CREDENTIALS.size))[1]
        )
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def _tells_users() -> bool:
    return sys.platform == "darwin" or hasattr(socket, "SO_PEERCRED")
