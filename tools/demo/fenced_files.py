"""A resource outside of the mesh, protected by locks: files that reject writes with an old token."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any


class TooLate(Exception):
    """A newer holder has written."""

    def __init__(self, token: int, highest: int) -> None:
        super().__init__(f"it came with token {token}, and the file has seen {highest}")


class FencedFiles:
    """A file for each key, one line for each write. It only checks that tokens rise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: str, token: int, **line: Any) -> None:
        """Append a line under a token, unless a newer one was seen."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(key).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released at the end, even if the process is killed
            file.seek(0)
            highest = max((json.loads(each)["token"] for each in file), default=0)
            if token < highest:
                raise TooLate(token, highest)
            file.write(json.dumps({"key": key, "token": token, **line}) + "\n")

    def lines(self) -> dict[str, list[dict[str, Any]]]:
        """Return the lines of each key, in order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self._folder.glob("*.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                found.setdefault(line["key"], []).append(line)
        return found

    def _file(self, key: str) -> Path:
        return self._folder / f"{key.removeprefix('file:')}.jsonl"
