"""The end of a run, when nobody writes any more: what the database holds, and whether the replicas do too."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from proof import moves, tables
from proof.chaos import storm
from proof.chaos.ground import Ground
from proof.chaos.strangers import MARK
from proof.history import Recorder
from proof.reading import Ask, read_finals
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.opening import Role

_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
)
_SYNC_S: Final = 20.0
_PAGE: Final = 2_000


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[tuple[Store, Ask]]:
    """The database itself, asked by the stage."""
    async with await open_store(settings, Role.COMMAND) as store:

        async def ask(sql: str) -> list[dict[str, Any]]:
            rows = await store.read(sql, fresh=True)
            return [dict(zip(rows.columns, row, strict=True)) for row in rows]

        yield store, ask


async def prepare(store: Store) -> None:
    """Make what a run has of its own in the database: tables of the workloads, and a witness."""
    for statement in (*tables.CREATE, *moves.INSTALL, storm.DDL):
        await store.write(Script(Statement(statement)))


async def note_finals(ask: Ask, ground: Ground, stage: Recorder) -> None:
    """Write into the history all that judges want to know of the end."""
    await read_finals(ask, stage)
    for row in await ask(f"SELECT name, n FROM {storm.TABLE}"):
        stage.note("final.storm", **row)
    await _note_strangers(ask, stage)
    if ground.server is not None:
        for player in ground.settings:
            await _note_replica(ask, ground, player, stage)


async def _note_strangers(ask: Ask, stage: Recorder) -> None:
    for row in await ask(_TABLES):
        table = row["name"]
        columns = [each["name"] for each in await ask(f"SELECT name FROM pragma_table_info('{table}')")]
        marked = " OR ".join(f"instr(CAST([{each}] AS TEXT), '{MARK}')" for each in columns)
        (found,) = await ask(f"SELECT count(*) AS n FROM {table} WHERE {marked}")
        stage.note("final.strangers", table=table, rows=found["n"])


async def _note_replica(ask: Ask, ground: Ground, player: str, stage: Recorder) -> None:
    """Have the player's replica, as it was left, catch up; then it must be the same as the primary."""
    settings = ground.settings[player]
    async with await open_store(settings) as store, asyncio.timeout(_SYNC_S):
        await store.synced()
    with closing(_opened(ground.replica_of(player))) as connection:
        differing = [table async for table in _differing(ask, connection)]
        intact = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    stage.note("final.replica", player=player, equal=not differing, differing=differing, intact=intact)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1&mode=ro", uri=True)


async def _differing(ask: Ask, connection: sqlite3.Connection) -> AsyncIterator[str]:
    """The tables that are not the same there as at the primary."""
    names = [row["name"] for row in await ask(_TABLES)]
    if [name for (name,) in connection.execute(_TABLES)] != names:
        yield "sqlite_schema"
        return
    for name in names:
        if not await _is_same(ask, connection, name):
            yield name


async def _is_same(ask: Ask, connection: sqlite3.Connection, table: str) -> bool:
    """Page by page: a server gives no answer of any size."""
    for page in range(0, 2**63, _PAGE):
        query = f"SELECT * FROM {table} LIMIT {_PAGE} OFFSET {page}"
        theirs = [tuple(row.values()) for row in await ask(query)]
        if _any_differ(connection.execute(query), theirs):
            return False
        if len(theirs) < _PAGE:
            return True
    raise AssertionError("no table is that long")


def _any_differ(ours: Iterable[tuple[Any, ...]], theirs: Iterable[tuple[Any, ...]]) -> bool:
    return any(our != their for our, their in zip_longest(ours, theirs))
