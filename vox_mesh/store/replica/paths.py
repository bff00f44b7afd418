"""The paths of a replica and of its mark."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SUFFIX: Final = ".mark"
SHARED: Final = "shared"
"""Stands for the slot of a replica that belongs to all processes of a home."""

_SHARED: Final = f"_{SHARED}-"  # no name of a slot begins so


def replica_path(database: Path, slot: str) -> Path:
    """Return the path of a slot's replica."""
    return Path(f"{database}.replica-{slot}")


def shared_path(database: Path, home: Path, primary: str) -> Path:
    """Return the path of the replica of a primary that the processes of a home share."""
    mesh = hashlib.sha256(f"{home.resolve()}\n{primary}".encode()).hexdigest()[:12]
    return replica_path(database, f"{_SHARED}{mesh}")


def slot_of(suffix: str) -> str:
    """Return the slot that a replica belongs to, by the end of its path: `shared` if to all of a home."""
    return SHARED if suffix.startswith(_SHARED) else suffix


def slot_of_replica(database: Path, path: Path) -> str:
    """Return the slot that the replica at `path` belongs to, or `shared`."""
    return slot_of(path.name.removeprefix(replica_path(database, "").name))


def mark_of(path: Path) -> Path:
    """Return the path of a replica's mark."""
    return Path(f"{path}{SUFFIX}")
