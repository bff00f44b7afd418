"""What the mesh logs with a traceback: no fault of the world around it may lead to one."""

from __future__ import annotations

import logging
from collections.abc import Callable


class CrashHandler(logging.Handler):
    """Tells of each, with what was said and the error."""

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        super().__init__(logging.ERROR)
        self._on_crash = on_crash

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of it if it came with an error."""
        if record.exc_info and record.exc_info[1]:
            self._on_crash(record.getMessage(), record.exc_info[1])
