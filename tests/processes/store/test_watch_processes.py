"""Watches across processes: what one commits, the watches of all others come to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.processes.conftest import StartWriter
from tests.support.running.jobs import Job
from tests.support.running.programs import program
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from vox_mesh import Settings, Store, open_store
from vox_mesh.runtime import open_store as opening
from vox_mesh.store.watch.file_events import CommitEvents, NoSigns, WalAndBell
from vox_mesh.store.watch.listeners import WalListener

_PATIENCE_S: Final = 30.0
_ROWS: Final = 200

_WATCH: Final = """
import asyncio, sys
from vox_mesh import load_settings, open_store

async def main():
    async with await open_store(load_settings()) as store:
        seen = []
        async for change in store.watch(sys.argv[1]):
            if not seen:
                print("watching", flush=True)
            seen.append(change.rows.value)
            if seen[-1] == int(sys.argv[2]):
                break
        assert seen == sorted(set(seen)), seen

asyncio.run(asyncio.wait_for(main(), 60))
open(sys.argv[3], "w").close()
"""


@pytest.fixture(params=[FILE, MESH_REPLICA, MESH], ids=str)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home that several processes can share."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


async def _write_all(settings: Settings, table: str, start_writer: StartWriter) -> None:
    """Have another process commit this many rows, one after another."""
    writer = await start_writer(settings, Job("spool", table, "w", scripts=_ROWS))
    await writer.finish()


async def test_the_watches_of_all_processes_end_at_the_last_commit(
    shared: Settings, tmp_path: Path, start_writer: StartWriter
) -> None:
    async with await open_store(shared) as store:
        table = await make_table(store, COLUMNS)
        count = f"SELECT count(*) FROM {table}"
        ends = [tmp_path / f"end-{n}" for n in range(2)]
        with ExitStack() as watchers:
            for end in ends:
                said, _ = watchers.enter_context(program(_WATCH, count, _ROWS, end, settings=shared))
                assert said == "watching"
            seeing = asyncio.create_task(_seen(store, count))
            await _write_all(shared, table, start_writer)
            assert (await seeing)[-1] == _ROWS
        assert all(end.exists() for end in ends), "a watch in another process missed the end"


async def _seen(store: Store, count: str) -> list[int]:
    seen: list[int] = []
    async with asyncio.timeout(_PATIENCE_S):
        async for change in store.watch(count):
            seen.append(change.rows.value)
            if seen[-1] == _ROWS:
                break
    assert seen == sorted(set(seen))
    return seen


@pytest.mark.parametrize("events", [WalAndBell, NoSigns])
async def test_on_the_file_home_another_processs_commits_are_seen_with_and_without_events(
    events: Callable[[Path, Path], CommitEvents],
    tmp_path: Path,
    start_writer: StartWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "WalListener", partial(WalListener, events=events))
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
        seeing = asyncio.create_task(_seen(store, f"SELECT count(*) FROM {table}"))
        await _write_all(settings, table, start_writer)
        assert len(await seeing) > 1
