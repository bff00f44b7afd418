"""A file that one process has opened several times is still shared with others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.homes import FILE
from vox_mesh import Script, Settings, Statement, open_store

_READ: Final = """
import contextlib, sqlite3, sys
with contextlib.closing(sqlite3.connect(sys.argv[1])) as connection:
    print(*(row[0] for row in connection.execute(sys.argv[2])))
"""


def _elsewhere(settings: Settings, sql: str) -> list[str]:
    """What another process, which comes and goes, finds in the file."""
    ended = subprocess.run(
        [sys.executable, "-c", _READ, str(settings.db_path), sql],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.split()


async def test_others_see_what_is_written_after_a_second_one_was_opened_and_closed(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        await store.write(Script(Statement("CREATE TABLE notes (n INTEGER)")))
        async with await open_store(settings):
            pass
        assert _elsewhere(settings, "SELECT n FROM notes") == []
        await store.write(Script(Statement("INSERT INTO notes VALUES (?)", (7,))))
        assert _elsewhere(settings, "SELECT n FROM notes") == ["7"]
    assert _elsewhere(settings, "SELECT n FROM notes") == ["7"]
