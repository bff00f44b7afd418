"""Tracebacks in the log: no fault outside of the mesh may cause one."""

from __future__ import annotations

import logging
from collections.abc import Callable


class CrashHandler(logging.Handler):
    """Report every log record that has a traceback."""

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        super().__init__(logging.ERROR)
        self._on_crash = on_crash

    def emit(self, record: logging.LogRecord) -> None:
        """Report the record if it has an error."""
        if record.exc_info and record.exc_info[1]:
            self._on_crash(record.getMessage(), record.exc_info[1])
