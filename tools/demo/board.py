"""A resource outside of the mesh that locks protect: files that refuse whoever comes with an old token."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any


class TooLate(Exception):
    """A newer holder was here."""

    def __init__(self, token: int, highest: int) -> None:
        super().__init__(f"it came with token {token}, and the file has seen {highest}")


class Board:
    """A file for each key, one line for each write. All it knows of locks is that their tokens rise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: str, token: int, **line: Any) -> None:
        """Add a line under a token, unless a newer one was seen."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(key).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go of at the end, also by a process that is killed
            file.seek(0)
            highest = max((json.loads(each)["token"] for each in file), default=0)
            if token < highest:
                raise TooLate(token, highest)
            file.write(json.dumps({"key": key, "token": token, **line}) + "\n")

    def lines(self) -> dict[str, list[dict[str, Any]]]:
        """What was written under each key, in order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self._folder.glob("*.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                found.setdefault(line["key"], []).append(line)
        return found

    def _file(self, key: str) -> Path:
        return self._folder / f"{key.removeprefix('file:')}.jsonl"
