"""Logs: on stderr, one line per event."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from vox_mesh.observability.log_context import log_fields

_log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 10_000
_MAX_TRACEBACK: Final = 100_000
_HIDDEN: Final = "***"
_LEAST_SECRET: Final = 6  # what is shorter would be found in innocent words
_CREDENTIALS: Final = re.compile(
    r"""(?ix) (?P<kept> \bauthorization['"]?\s*[:=]\s*['"]? | \b(?=(?:bearer|basic)\s)
        | \b(?:auth_?token|access_token|token|jwt|password)= )
        (?:(?:bearer|basic)\s+)? [^\s'"&,;]{6,}"""
)
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_SELDOM: Final = "opentelemetry."
_SELDOM_S: Final = 60.0

_of_process: dict[str, str] = {}


def is_debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("VOX_DEBUG", "") not in ("", "0")


def set_up_logs(log_format: str, secrets: Sequence[str] = (), agent: str | None = None) -> None:
    """Send all logs of this process to stderr, as text or as JSON, without these secrets."""
    handler = logging.StreamHandler(sys.stderr)
    words = _Words(secrets)
    handler.setFormatter(_JsonLine(words) if log_format == "json" else _TextLine(words))
    handler.addFilter(_Seldom())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("vox_mesh").setLevel(logging.INFO)
    logging.captureWarnings(True)
    _of_process.clear()
    if agent is not None:
        _of_process["agent"] = agent
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _thread_failed


def name_node(node_id: str) -> None:
    """Have all lines of this process tell which node it is."""
    _of_process["node"] = node_id


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        name = "a thread" if failed.thread is None else failed.thread.name
        _log.error("%s ended in a fault", name, exc_info=failed.exc_value)


class _Words:
    """Makes words that may come from anywhere fit to be shown: no secrets, no tricks, and not too many."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = [each for each in secrets if len(each) >= _LEAST_SECRET]

    def line(self, text: str) -> str:
        """The text on one line; what can't be printed is written as Python would."""
        text = " ".join(self.hidden(text).split())
        if len(text) > _MAX_MESSAGE:
            text = text[:_MAX_MESSAGE] + "…"
        if text.isprintable():
            return text
        return "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )

    def hidden(self, text: str) -> str:
        """The text without what gives access to anything."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _USER_INFO.sub(_HIDDEN, _CREDENTIALS.sub(rf"\g<kept>{_HIDDEN}", text))


class _Line(logging.Formatter):
    def __init__(self, words: _Words) -> None:
        super().__init__()
        self._words = words

    def _message(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception:  # the values do not fit the text: a mistake of whoever wrote it, and worth a line
            message = f"{record.msg!r} {record.args!r}"
        return self._words.line(message)

    def _traceback(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or not is_debugging():
            return None
        return self._words.hidden(self.formatException(record.exc_info))[-_MAX_TRACEBACK:]


class _TextLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {self._message(record)}"
        traceback = self._traceback(record)
        return line if traceback is None else f"{line}\n{traceback}"


class _JsonLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": self._words.line(record.name),
            "message": self._message(record),
        }
        for name, value in {**_of_process, **log_fields()}.items():
            event[name] = self._words.line(value) if isinstance(value, str) else value
        if record.exc_info and (error := record.exc_info[1]) is not None:
            event["error"] = self._words.line(f"{type(error).__name__}: {error}")
        if (traceback := self._traceback(record)) is not None:
            event["traceback"] = traceback
        return json.dumps(event)  # ASCII, whatever the terminal's encoding is


class _Seldom(logging.Filter):
    """What an exporter says again and again while nobody listens is said once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_SELDOM):
            return True
        now, text = time.monotonic(), str(record.msg)
        if now - self._said.get(text, -_SELDOM_S) < _SELDOM_S:
            return False
        self._said[text] = now
        return True
