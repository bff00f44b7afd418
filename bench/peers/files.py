"""What peers without a server lie on: a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_folder(folder: Path) -> Iterator[str]:
    """A folder of its own, and where that is."""
    folder.mkdir(parents=True, exist_ok=True)
    yield str(folder)
