"""A clock for a subprocess, which can be set while that runs. Its monotonic clock is not affected."""

from __future__ import annotations

from pathlib import Path

from tools.install_faketime import library


class SettableClock:
    """The environment for a process to follow this clock; `set_ahead` sets it."""

    def __init__(self, folder: Path) -> None:
        self._library = library()
        self._file = folder / "faketime"
        self.ahead_s = 0.0
        self.set_ahead(0.0)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its name before version 0.9.9
        }

    def set_ahead(self, seconds: float) -> None:
        """Set the clock this far ahead of the machine's."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+.3f}\n")
        draft.replace(self._file)
        self.ahead_s = seconds
