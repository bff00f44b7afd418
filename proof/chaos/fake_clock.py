"""A clock for a server that can be set while it runs, by libfaketime, where that is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_VARIABLE: Final = "VOX_FAKETIME"
_NAME: Final = "libfaketimeMT.so.1"
_PLACES: Final = (".cache/faketime", "/usr/lib", "/usr/local/lib")


def library() -> Path | None:
    """Where libfaketime is; `VOX_FAKETIME` may name its file."""
    if named := os.environ.get(_VARIABLE):
        return Path(named).resolve()
    root = Path(__file__).resolve().parents[2]
    found = (path for place in _PLACES for path in (root / place).rglob(_NAME))
    return next(found, None)


class FakeClock:
    """The wall clock of a process that is begun with `environment`; its monotonic clock is left alone."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment: Final = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, ahead_ms: int) -> None:
        """From now on it is so far ahead of the true time."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{ahead_ms / 1_000:+.3f}\n")
        written.replace(self._file)
