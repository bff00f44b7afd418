"""Logs: on stderr, one line per event."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime

import orjson


def is_debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("VOX_DEBUG", "") not in ("", "0")


def set_up_logs(log_format: str) -> None:
    """Send all logs to stderr, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine() if log_format == "json" else _TextLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("vox_mesh").setLevel(logging.INFO)


class _TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {_message(record)}"
        if record.exc_info and is_debugging():
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if record.exc_info and is_debugging():
            event["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(event).decode()


def _message(record: logging.LogRecord) -> str:
    return " ".join(record.getMessage().split())
