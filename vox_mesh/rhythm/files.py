"""The files that configure the rhythm of a process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class RhythmFiles(NamedTuple):
    """Paths of the rhythm's files; `None` where the settings name none."""

    policy: Path | None = None
    """The policy to follow until one is announced."""
    rates: Path | None = None
    """The rates of beats and resources."""
