"""The files that a process is told its rhythm by, in its settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class RhythmFiles(NamedTuple):
    """Where they are, if there are any."""

    policy: Path | None = None
    """By which policy to go as long as none was announced."""
    rates: Path | None = None
    """What beats and resources cost."""
