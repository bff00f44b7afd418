"""Databases of every schema that was ever in use, kept as SQL in `tests/store/schemas/`.

`vN.sql` is the last shape of version N; versions that changed while in use have earlier shapes too. All hold
the rows of one mesh that was in use at version 7, as far as their tables have room for them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Engine
from vox_mesh.store.schema.statements import split

_FOLDER: Final = Path(__file__).parents[2] / "store" / "schemas"
STORED: Final = sorted(path.stem for path in _FOLDER.glob("*.sql"))


def stored(name: str) -> str:
    """Return a stored database as SQL."""
    return (_FOLDER / f"{name}.sql").read_text()


def stored_file(name: str, path: Path) -> Path:
    """Write a stored database to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(stored(name))
        connection.execute("PRAGMA journal_mode = WAL")
    return path


async def load_stored(engine: Engine, name: str) -> None:
    """Put a stored database into an empty one."""
    batch = Batch()
    for statement in split(stored(name)):
        if not statement.startswith(("BEGIN", "COMMIT")):
            batch.add(statement.rstrip().rstrip(";"))
    result = await engine.run(batch.seal())
    assert result.committed, result.error
