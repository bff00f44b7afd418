"""Folders for what is this user's alone."""

from __future__ import annotations

from pathlib import Path


def make_private(folder: Path) -> None:
    """Create the folder, and those above it that are missing, closed to other users."""
    # One by one, because `parents=True` would leave those in between open to all.
    for each in (*reversed(folder.parents), folder):
        each.mkdir(exist_ok=True, mode=0o700)
