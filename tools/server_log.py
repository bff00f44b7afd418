"""A server's replication log, read from its files, so that polling costs the server nothing."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tools.sqld import Server

_HEADER: Final = struct.Struct("<QQ16sQQ")


class LogHead(NamedTuple):
    """The first and last frame of the server's log file."""

    first: int
    end: int


class ServerLog:
    """The log of one server, which must run on this machine."""

    def __init__(self, server: Server) -> None:
        self._folder = server.database_folder

    def head(self) -> LogHead:
        """Read the header of the current log file. Its first frame changes with every compaction."""
        with (self._folder / "wallog").open("rb") as file:
            *_, first, count = _HEADER.unpack(file.read(_HEADER.size))
        return LogHead(first, first + count)

    @property
    def is_compacting(self) -> bool:
        """Return whether a snapshot of an older log file is in progress."""
        return any((self._folder / "to_compact").iterdir())
