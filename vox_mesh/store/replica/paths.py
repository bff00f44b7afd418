"""The paths of a replica and of its mark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUFFIX: Final = ".mark"


def replica_path(database: Path, slot: str) -> Path:
    """Return the path of a slot's replica."""
    return Path(f"{database}.replica-{slot}")


def mark_of(path: Path) -> Path:
    """Return the path of a replica's mark."""
    return Path(f"{path}{SUFFIX}")
