"""A request to a command server, as bytes, and the replies to it.

The caller sends the request with the descriptors of its stdout, stderr and current folder, waits for `READY`,
sends `GO`, and waits for `ENDED` with the exit code. Before `GO` nothing has run, so the caller may still run
the command itself; afterwards it must not. `INTERRUPT` is Ctrl-C.
"""

from __future__ import annotations

import os
import sys

import vox_mesh

TYPE_CHECKING = False  # that of `typing`, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

SOCKET: Final = "commands.sock"
"""The name of the socket in the folder of a node's slot."""

DESCRIPTORS: Final = 3
MAX_BYTES: Final = 256 * 1024
LENGTH_BYTES: Final = 4

READY: Final = b"r"
GO: Final = b"g"
INTERRUPT: Final = b"i"
ENDED: Final = b"e"
REFUSED: Final = b"n"

_PROTOCOL: Final = "1"
_END: Final = b"\0"
_PREFIXES: Final = ("VOX_", "TURSO_", "XDG_", "LC_")
_NAMES: Final = frozenset(
    (
        *("COLUMNS", "CREDENTIALS_DIRECTORY", "HOME", "LANG", "LANGUAGE", "LINES", "NO_COLOR", "TERM"),
        *("TRACEPARENT", "TZ"),
        *("CLAUDECODE", "CODEX_THREAD_ID", "CURSOR_AGENT", "GEMINI_CLI", "OPENCODE"),  # marks of hosts
    )
)


class BadRequest(Exception):
    """Bytes that no caller of this version sends."""


class CommandRequest:
    """A command: its words, the variables that decide its settings, and what else its process inherits."""

    def __init__(
        self,
        installation: str,
        errors: str,
        umask: int,
        arguments: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        """`errors` says how stdout encodes what UTF-8 can't."""
        self.installation = installation
        self.errors = errors
        self.umask = umask
        self.arguments = arguments
        self.variables = variables

    def encode(self) -> bytes:
        """Return the bytes to send, after their length."""
        words = [
            *(self.installation, self.errors, str(self.umask), str(len(self.arguments))),
            *self.arguments,
            *(f"{name}={value}" for name, value in self.variables.items()),
        ]
        data = _END.join(os.fsencode(word) for word in words)
        return len(data).to_bytes(LENGTH_BYTES, "big") + data

    @classmethod
    def decode(cls, data: bytes) -> CommandRequest:
        """Return the request. Raises `BadRequest`."""
        try:
            installation, errors, umask, count, *words = (os.fsdecode(word) for word in data.split(_END))
            arguments, pairs = words[: int(count)], words[int(count) :]
            variables = dict(pair.split("=", 1) for pair in pairs)
            if not all(map(is_sent, variables)):
                raise ValueError
            return cls(installation, errors, int(umask), arguments, variables)
        except ValueError:
            raise BadRequest from None


def is_sent(name: str) -> bool:
    """Return whether a variable is part of a request. PATH and those of git are not: they choose programs."""
    return name in _NAMES or name.startswith(_PREFIXES)


def installation() -> str:
    """Return what differs if another version of this package, or another Python, is installed."""
    file = vox_mesh.__file__
    found = os.stat(file)
    return f"{_PROTOCOL} {sys.hexversion} {found.st_dev} {found.st_ino} {found.st_mtime_ns} {sys.prefix}"
