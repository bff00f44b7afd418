"""Text that is not UTF-8: SQLite stores it, but clients can't decode it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from vox_mesh.errors import UnreadableText
from vox_mesh.observability.throttled_logger import ThrottledLogger

_log: Final = ThrottledLogger(logging.getLogger(__name__))

replaced: Final[Callable[[bytes], str]] = partial(str, encoding="utf-8", errors="replace")
"""Return text with replacement characters for what is not UTF-8."""

_PYTHON: Final = "Could not decode to UTF-8"
_SERVER: Final = ("invalid utf-8 sequence", "incomplete utf-8 byte sequence")


def is_undecodable(error: Exception) -> bool:
    """Return whether Python's SQLite raised this because of text that is not UTF-8."""
    return str(error).startswith(_PYTHON)


def is_unreadable(message: str) -> bool:
    """Return whether a server failed with this message because of text that is not UTF-8."""
    return message.startswith(_SERVER)


def unreadable(detail: str) -> UnreadableText:
    """Return the error of a request whose answer holds text that is not UTF-8."""
    return UnreadableText(
        f"the database holds text that is not UTF-8: {detail}",
        statement=0,
        hint="run `vox-mesh doctor`: it names the rows and how to delete them",
    )


def note_replaced(sql: str) -> None:
    """Log that an answer has replacement characters."""
    _log(
        logging.ERROR,
        "text not UTF-8, read with replacement characters; run `vox-mesh doctor` to find it: query=%s",
        " ".join(sql.split())[:160],
    )
