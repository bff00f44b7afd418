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
from typing import Any, Final, TextIO

from vox_mesh.observability.log_context import log_fields

_log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 10_000
_MAX_TRACEBACK: Final = 100_000
_HIDDEN: Final = "***"
_MIN_SECRET: Final = 6  # a shorter one would match ordinary words
_CREDENTIALS: Final = re.compile(
    r"""(?ix) (?P<kept> \bauthorization['"]?\s*[:=]\s*['"]? | \b(?=(?:bearer|basic)\s)
        | \b(?:auth_?token|access_token|token|jwt|password)= )
        (?:(?:bearer|basic)\s+)? [^\s'"&,;]{6,}"""
)
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_REPEATING: Final = "opentelemetry."
_REPEAT_S: Final = 60.0

_process_fields: dict[str, str] = {}


def is_debugging() -> bool:
    """Return whether VOX_DEBUG asks for tracebacks."""
    return os.environ.get("VOX_DEBUG", "") not in ("", "0")


def set_up_logs(log_format: str, secrets: Sequence[str] = (), agent: str | None = None) -> None:
    """Log to stderr, as text or JSON, with these secrets redacted."""
    handler = log_handler(sys.stderr, log_format, secrets)
    handler.addFilter(_RepeatFilter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("vox_mesh").setLevel(logging.INFO)
    logging.captureWarnings(True)
    _process_fields.clear()
    if agent is not None:
        _process_fields["agent"] = agent
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_thread_failure


def log_handler(stream: TextIO, log_format: str, secrets: Sequence[str] = ()) -> logging.Handler:
    """Return a handler that writes sanitized lines, as text or JSON."""
    handler = logging.StreamHandler(stream)
    sanitizer = _Sanitizer(secrets)
    handler.setFormatter(_JsonLine(sanitizer) if log_format == "json" else _TextLine(sanitizer))
    return handler


def set_log_node(node_id: str) -> None:
    """Add the node's id to all log lines of this process."""
    _process_fields["node"] = node_id


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None:
        name = "unknown" if failure.thread is None else failure.thread.name
        _log.error("thread failed: thread=%s", name, exc_info=failure.exc_value)


class _Sanitizer:
    """Makes untrusted text safe to log: secrets redacted, control characters escaped, length limited."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = [each for each in secrets if len(each) >= _MIN_SECRET]

    def line(self, text: str) -> str:
        """Return the text on one line, with unprintable characters escaped."""
        text = " ".join(self.redact(text).split())
        if len(text) > _MAX_MESSAGE:
            text = text[:_MAX_MESSAGE] + "…"
        if text.isprintable():
            return text
        return "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )

    def redact(self, text: str) -> str:
        """Return the text without credentials."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _USER_INFO.sub(_HIDDEN, _CREDENTIALS.sub(rf"\g<kept>{_HIDDEN}", text))


class _Line(logging.Formatter):
    def __init__(self, sanitizer: _Sanitizer) -> None:
        super().__init__()
        self._sanitizer = sanitizer

    def _message(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception:  # the arguments do not fit the format: a bug, but worth a line
            message = f"{record.msg!r} {record.args!r}"
        return self._sanitizer.line(message)

    def _traceback(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or not is_debugging():
            return None
        return self._sanitizer.redact(self.formatException(record.exc_info))[-_MAX_TRACEBACK:]


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
            "logger": self._sanitizer.line(record.name),
            "message": self._message(record),
        }
        for name, value in {**_process_fields, **log_fields()}.items():
            event[name] = self._sanitizer.line(value) if isinstance(value, str) else value
        if record.exc_info and (error := record.exc_info[1]) is not None:
            event["error"] = self._sanitizer.line(f"{type(error).__name__}: {error}")
        if (traceback := self._traceback(record)) is not None:
            event["traceback"] = traceback
        return json.dumps(event)  # ASCII, which every terminal encoding can show


class _RepeatFilter(logging.Filter):
    """Limits the repeated errors of an exporter without a collector to one a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_REPEATING):
            return True
        now, text = time.monotonic(), str(record.msg)
        if now - self._logged.get(text, -_REPEAT_S) < _REPEAT_S:
            return False
        self._logged[text] = now
        return True
