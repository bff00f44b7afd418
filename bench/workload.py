"""What is written and read: the same small table on every home, raw and through the store."""

from __future__ import annotations

from typing import Final

from vox_mesh import Script, Shape, Statement, Store
from vox_mesh.store.rows import Value

CREATE: Final = "CREATE TABLE IF NOT EXISTS bench_rows (id INTEGER PRIMARY KEY, a, b)"
INSERT: Final = "INSERT INTO bench_rows (a, b) VALUES (?, ?)"
SELECT: Final = "SELECT a, b FROM bench_rows WHERE id = ?"
LATEST: Final = "SELECT a FROM bench_rows ORDER BY id DESC LIMIT 1"
VALUES: Final[tuple[Value, ...]] = (42, "a text as long as an agent's name")
FIRST: Final[tuple[Value, ...]] = (1,)

_ROW: Final = Shape(
    "bench.row",
    (
        "INSERT INTO bench_rows (a, b) "
        "SELECT json_extract(value, '$.a'), json_extract(value, '$.b') FROM json_each(?1)",
    ),
)
PAGE: Final = 4_096
_CREATE_PAGES: Final = "CREATE TABLE IF NOT EXISTS bench_pages (id INTEGER PRIMARY KEY, n, b)"
_FILL_PAGES: Final = (
    "INSERT INTO bench_pages (n, b) "
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) "
    "SELECT 0, randomblob(4000) FROM c"  # a page for each row
)
_REWRITE_PAGES: Final = "UPDATE bench_pages SET n = n + 1"
_PAGES_AT_ONCE: Final = 1_000

_SETTLED_SCRIPTS: Final = 20_480  # more than the store remembers: from here on it forgets as it writes
_CHUNK: Final = 256


def one_insert() -> Script:
    """A script of one statement."""
    return Script(Statement(INSERT, VALUES))


def two_inserts() -> Script:
    """A script of two statements."""
    return Script(Statement(INSERT, VALUES), Statement(INSERT, VALUES))


def numbered_insert(number: int) -> Script:
    """A script of one insert by which `LATEST` becomes this number."""
    return Script(Statement(INSERT, (number, VALUES[1])))


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


async def fill_pages(store: Store, pages: int) -> None:
    """Create a table of this many pages, in transactions of a thousand."""
    await store.write(Script(Statement(_CREATE_PAGES)))
    for done in range(0, pages, _PAGES_AT_ONCE):
        await store.write(Script(Statement(_FILL_PAGES, (min(_PAGES_AT_ONCE, pages - done),))))


def rewrite_pages() -> Script:
    """A script that changes every page of that table."""
    return Script(Statement(_REWRITE_PAGES))
