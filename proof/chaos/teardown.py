"""The end of a run, when no node writes any more: the final state of the database and of the replicas."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

from proof import tables, witness
from proof.chaos import marks, storm
from proof.chaos.fuzzers import MARK
from proof.chaos.infrastructure import Infrastructure
from proof.chaos.restoring import note_backups
from proof.final_state import Ask, record_final_state
from proof.history import Recorder
from proof.workloads.archiving import ARCHIVE
from vox_mesh import MeshError, Script, Settings, Statement, Store, open_store
from vox_mesh.cli.database.db import sync_replica
from vox_mesh.errors import DatabaseUnavailable, Unreachable
from vox_mesh.oplog.archive.entry_lines import read_entry
from vox_mesh.runtime.open_store import Role, open_engine

_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
)
Dump = dict[str, list[dict[str, Any]]]
"""The rows of each table."""

_SYNC_S: Final = 60.0
_SYNC_RETRY_DELAY_S: Final = 0.5
_PAGE: Final = 2_000


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[tuple[Store, Ask]]:
    """Open the database itself, for the environment."""
    async with await open_store(settings, Role.COMMAND) as store:

        async def ask(sql: str) -> list[dict[str, Any]]:
            rows = await store.read(sql, fresh=True)
            return [dict(zip(rows.columns, row, strict=True)) for row in rows]

        yield store, ask


@asynccontextmanager
async def asking_unmigrated(settings: Settings) -> AsyncIterator[Ask]:
    """Open the database itself without migrating it: that is for the nodes to do."""
    engine = await open_engine(settings)

    async def ask(sql: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(_SYNC_S):
            while True:
                with suppress(DatabaseUnavailable):
                    rows = await engine.query(Statement(sql))
                    return [dict(zip(rows.columns, row, strict=True)) for row in rows]
                await asyncio.sleep(_SYNC_RETRY_DELAY_S)

    try:
        yield ask
    finally:
        await engine.close()


async def prepare(store: Store) -> None:
    """Create the tables of the workloads, and the witnesses."""
    for statement in (*tables.CREATE, *witness.INSTALL, storm.DDL, marks.DDL):
        await store.write(Script(Statement(statement)))


async def record_end_state(
    ask: Ask, infrastructure: Infrastructure, recorder: Recorder, outside: Path
) -> None:
    """Write the final state that checks need into the history."""
    await record_final_state(ask, recorder)
    _note_archive(outside / ARCHIVE, await _log_ids(ask), recorder)
    await note_backups(outside, infrastructure.own_settings, recorder)
    for row in await ask(f"SELECT name, n FROM {storm.TABLE}"):
        recorder.note("final.storm", **row)
    await _note_fuzzers(ask, recorder)
    if infrastructure.server is not None:
        primary = await _dump(ask)
        await asyncio.gather(
            *(_note_replica(infrastructure, each, primary, recorder) for each in infrastructure.settings)
        )


async def _log_ids(ask: Ask) -> set[int]:
    """Return the ids of all entries in the database."""
    found: set[int] = set()
    while page := await ask(f"SELECT id FROM agent_oplog WHERE id > {max(found, default=0)} LIMIT {_PAGE}"):
        found.update(row["id"] for row in page)
    return found


def _note_archive(folder: Path, present: set[int], recorder: Recorder) -> None:
    """Note the entries in each file of the archive, and in full what the database lacks."""
    for path in sorted(folder.glob("segment-*")):
        lines = gzip.decompress(path.read_bytes()).splitlines()
        entries = [read_entry(line + b"\n") for line in lines[1:-1]]
        recorder.note(
            "final.segment",
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            entries=[[each.id, each.op_id, each.hash, each.node_id, each.seq] for each in entries],
        )
        for entry in entries:
            if entry.id not in present:
                recorder.note("final.archived", row=entry._asdict())


async def _note_fuzzers(ask: Ask, recorder: Recorder) -> None:
    for row in await ask(_TABLES):
        table = row["name"]
        columns = [each["name"] for each in await ask(f"SELECT name FROM pragma_table_info('{table}')")]
        marked = " OR ".join(f"instr(CAST([{each}] AS TEXT), '{MARK}')" for each in columns)
        (found,) = await ask(f"SELECT count(*) AS n FROM {table} WHERE {marked}")
        recorder.note("final.strangers", table=table, rows=found["n"])


async def _note_replica(infrastructure: Infrastructure, node: str, primary: Dump, recorder: Recorder) -> None:
    """Let the node's replica, as it was left, catch up; then it must equal the primary."""
    try:
        await _sync(infrastructure.settings[node])
    except (MeshError, TimeoutError) as error:
        recorder.note("final.replica", player=node, equal=False, error=repr(error))
        return
    try:
        replica, intact = await _replica(infrastructure, node)
    except sqlite3.DatabaseError as error:
        recorder.note("final.replica", player=node, equal=False, intact=False, error=str(error))
        return
    differing = sorted(name for name in {*primary, *replica} if primary.get(name) != replica.get(name))
    is_equal = intact and not differing
    recorder.note("final.replica", player=node, equal=is_equal, differing=differing, intact=intact)


async def _sync(settings: Settings) -> None:
    """Let a replica catch up; one that gets no answer for a while tries again, as that of a node does."""
    async with asyncio.timeout(_SYNC_S):
        while True:
            with suppress(Unreachable):
                await sync_replica(settings, lambda done, total: None)
                return
            await asyncio.sleep(_SYNC_RETRY_DELAY_S)


async def _replica(infrastructure: Infrastructure, node: str) -> tuple[Dump, bool]:
    """Return the rows of a node's replica, and the result of its integrity check."""
    address = f"{infrastructure.replica_of(node).absolute().as_uri()}?immutable=1&mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.row_factory = sqlite3.Row

        async def ask(sql: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(sql)]

        return await _dump(ask), connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


async def _dump(ask: Ask) -> Dump:
    """Return all rows of all tables, page by page: a server limits the size of a response."""
    dump: Dump = {}
    for row in await ask(_TABLES):
        rows: list[dict[str, Any]] = []
        while len(rows) % _PAGE == 0:
            page = await ask(f"SELECT * FROM {row['name']} LIMIT {_PAGE} OFFSET {len(rows)}")
            rows += page
            if not page:
                break
        dump[row["name"]] = rows
    return dump
