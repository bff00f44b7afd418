"""What is written and read: the same small table on every home, raw and through the store."""

from __future__ import annotations

from typing import Final

from vox_mesh import Script, Shape, Statement, Store
from vox_mesh.store.values import Value

CREATE: Final = "CREATE TABLE IF NOT EXISTS bench_rows (id INTEGER PRIMARY KEY, a, b)"
INSERT: Final = "INSERT INTO bench_rows (a, b) VALUES (?, ?)"
SELECT: Final = "SELECT a, b FROM bench_rows WHERE id = ?"
VALUES: Final[tuple[Value, ...]] = (42, "a text as long as an agent's name")
FIRST: Final[tuple[Value, ...]] = (1,)

_ROW: Final = Shape(
    "bench.row",
    (
        "INSERT INTO bench_rows (a, b) "
        "SELECT json_extract(value, '$.a'), json_extract(value, '$.b') FROM json_each(?1)",
    ),
)
_SETTLED_SCRIPTS: Final = 20_480  # more than the store remembers: from here on it forgets as it writes
_CHUNK: Final = 256


def one_insert() -> Script:
    """A script of one statement."""
    return Script(Statement(INSERT, VALUES))


def two_inserts() -> Script:
    """A script of two statements."""
    return Script(Statement(INSERT, VALUES), Statement(INSERT, VALUES))


def merged_insert() -> Script:
    """A script of one insert that merges with its neighbours."""
    return Script.of(_ROW, {"a": 42, "b": "a text as long as an agent's name"})


async def prepare(store: Store, *, settled: bool) -> None:
    """Make the table and a first row; `settled`: write on until the store works as after a long run."""
    await store.write(Script(Statement(CREATE)))
    await store.write(one_insert())
    if settled:
        for _ in range(_SETTLED_SCRIPTS // _CHUNK):
            await store.write_all([merged_insert() for _ in range(_CHUNK)])
