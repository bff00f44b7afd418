"""A git hook, `reference-transaction`: note the locks in force at the moment of each commit.

git runs it before a branch moves. It reads the database itself, past the mesh, and uses the standard library
only: `python commit_witness.py CONFIG`, with the branches that move on stdin.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any, Final

NOTE: Final = "commit.locks"
COLUMNS: Final = ("lock_key", "holder_agent", "fence_token", "expires_at")
_HELD: Final = f"SELECT {', '.join(COLUMNS)} FROM distributed_locks WHERE request_id <> ''"
_TIMEOUT_S: Final = 10.0


def main() -> None:
    """Append a note for each new commit to the history."""
    settings: dict[str, str] = json.loads(Path(sys.argv[1]).read_text())
    locks = [dict(zip(COLUMNS, row, strict=True)) for row in held(settings)]
    commits = {line.split()[1] for line in sys.stdin}
    data = {"locks": locks, "at_ms": time.time_ns() // 1_000_000}
    for commit in sorted(commits):
        event = (time.monotonic(), "git", 1, NOTE, "note", 0, {"commit": commit, **data})
        append(settings["history"], json.dumps(event) + "\n")


def append(path: str, line: str) -> None:
    """Append a line to a file at once: several hooks may write."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def held(settings: dict[str, str]) -> list[list[Any]]:
    """Return the locks in force, as the database has them now."""
    if "file" in settings:
        with closing(sqlite3.connect(f"file:{settings['file']}?mode=ro", uri=True, timeout=_TIMEOUT_S)) as db:
            return [[*row] for row in db.execute(_HELD)]
    body = {"requests": [{"type": "execute", "stmt": {"sql": _HELD}}, {"type": "close"}]}
    request = urllib.request.Request(
        f"{settings['url']}/v2/pipeline",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {settings['token']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        answer = json.load(response)["results"][0]["response"]["result"]
    return [[cell.get("value") for cell in row] for row in answer["rows"]]


if __name__ == "__main__":
    main()
