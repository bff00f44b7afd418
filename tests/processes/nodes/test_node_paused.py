"""A node that falls silent, is replaced, or leaves: what all others see of it, and what it can still do."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import StartWriter
from tests.support.oplog.authors import assert_log_tells_the_same
from tests.support.running.jobs import Job
from tests.support.running.processes import Writer
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Settings, open_store
from vox_mesh.mesh import Mesh
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, NodeState
from vox_mesh.nodes.nodes import Node
from vox_mesh.store.slots import slot_folder, take_slot

_NAME = "sleeper"
_OTHER = "other"
_TICK_MS = 300
_AT_ONCE_S = 5.0  # nothing but its own word tells that it left
_IN_TIME_S = 5.0
_PATIENCE_S = 60.0
_CALLERS = 2
_LEVELS = [NodeState.ALIVE, NodeState.WARN, NodeState.ALERT, NodeState.CRITICAL, NodeState.DEAD]


def _in(folder: Path, settings: Settings, name: str = _NAME) -> Settings:
    """The same mesh from another folder."""
    path = folder / "local.db" if settings.db_url else settings.db_path
    return settings.model_copy(update={"home_dir": folder, "db_path": path, "node_id": name})


async def _seen(mesh: Mesh, name: str, state: NodeState, incarnation: int | None = None) -> list[Node]:
    """All that a watch shows of a node until it is in that state (as that incarnation)."""
    shown: list[Node] = []
    async with asyncio.timeout(_PATIENCE_S):
        async for nodes in mesh.nodes.watch():
            shown += [node for node in nodes if node.node_id == name]
            if shown and shown[-1].state is state and incarnation in (None, shown[-1].incarnation):
                break
    return shown


@asynccontextmanager
async def _paused(pid: int) -> AsyncIterator[None]:
    """Stop a process in its tracks, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _pid(mesh: Mesh, author: Writer) -> int:
    """The process of a node that has begun, as the mesh knows it."""
    await author.until(bool)
    return (await _seen(mesh, author.reports[0]["node"], NodeState.ALIVE))[-1].pid


async def test_a_paused_node_is_seen_to_fall_silent_in_time_and_to_be_back(
    tmp_path: Path, shared_server: Server, start_author: StartWriter
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, shared_server, tick=f"{_TICK_MS}ms", node_id=_NAME)
    sleeper = await start_author(settings, Job("sit"))
    async with Mesh.open(_in(tmp_path / "observer", settings, _OTHER)) as observer:
        pid = await _pid(observer, sleeper)
        async with _paused(pid):
            shown = await _seen(observer, _NAME, NodeState.DEAD)
            dead = shown[-1]
            assert dead.age_ms >= DEAD_AFTER_TICKS * _TICK_MS
            assert dead.age_ms < DEAD_AFTER_TICKS * _TICK_MS + _IN_TIME_S * 1_000
            levels = [_LEVELS.index(node.state) for node in shown]
            assert levels == sorted(levels)
            assert len(levels) >= 3, "it was dead all of a sudden"
            live = await observer.nodes.live_nodes_from_db(stale_threshold_ms=10 * _TICK_MS)
            assert [node.node_id for node in live] == [_OTHER]
        back = (await _seen(observer, _NAME, NodeState.ALIVE))[-1]
        assert (back.pid, back.incarnation) == (pid, 1)
        await sleeper.finish()


@pytest.mark.parametrize("verb", ["sit", "stream"])
async def test_a_replaced_node_that_wakes_up_writes_nothing_more(
    verb: str, tmp_path: Path, shared_server: Server, start_author: StartWriter
) -> None:
    """Whether its successor has appended anything, or only begun."""
    settings = MESH.settings(tmp_path, shared_server, tick="100ms", node_id=_NAME, db_deadline="60s")
    async with await open_store(_in(tmp_path / "observer", settings, _OTHER)) as store:
        table = await make_table(store, COLUMNS)
    old = await start_author(settings, Job("stream", table, "old", callers=_CALLERS))
    async with Mesh.open_command(_in(tmp_path / "observer", settings, _OTHER)) as observer:
        pid = await _pid(observer, old)
        await old.until_more(50)
        async with _paused(pid):
            await _seen(observer, _NAME, NodeState.DEAD)
            copied = _in(tmp_path / "copy", settings)
            shutil.copytree(slot_folder(settings.home_dir, _NAME), slot_folder(copied.home_dir, _NAME))
            new = await start_author(copied, Job(verb, table, "new", callers=_CALLERS))
            await new.until_more(1 if verb == "sit" else 20)
            await _seen(observer, _NAME, NodeState.ALIVE, incarnation=2)
            assert new.reports[0]["key"] == old.reports[0]["key"]
            last_id = await observer.oplog.last_id()
        await old.until(lambda reports: _stale(reports) == _CALLERS)
        reports = [each for author in (old, new) for each in await author.finish() if "op" in each]
        late = await observer.store.read(
            "SELECT payload FROM agent_oplog WHERE scope_id = ? AND id > ? AND payload ->> 'writer' = 'old'",
            (settings.scope_id, last_id),
        )
        assert list(late) == []
        await assert_log_tells_the_same(observer, table, reports)
        (chain,) = await observer.oplog.verify()
        assert chain.sealed_to == chain.entries - 1
        node = await observer.nodes.find(_NAME)
        assert node is not None
        assert (node.incarnation, node.state) == (2, NodeState.LEFT)  # the new one's word, not the old one's
        assert node.pid != pid
    assert "started again elsewhere" in old.errors


def _stale(reports: list[dict[str, Any]]) -> int:
    return sum(each.get("outcome") == "StaleIncarnation" for each in reports)


@pytest.mark.parametrize("case", [FILE, MESH, MESH_REPLICA], ids=str)
async def test_a_node_that_leaves_is_seen_to_at_once_and_leaves_nothing_behind(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_author: StartWriter
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    async with Mesh.open(_in(tmp_path / "observer", settings, _OTHER)) as observer:
        for incarnation, (end, code) in enumerate(
            ((Writer.ask_to_stop, 0), (Writer.interrupt, 130)), start=1
        ):
            author = await start_author(settings, Job("sit"))
            pid = await _pid(observer, author)
            name = author.reports[0]["node"]
            watching = asyncio.create_task(_seen(observer, name, NodeState.LEFT, incarnation))
            end(author)
            assert await author.ended() == code
            ended = time.monotonic()
            assert (await watching)[-1].incarnation == incarnation
            assert time.monotonic() - ended < _AT_ONCE_S
            assert author.errors == ""
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            take_slot(settings.home_dir).release()
            assert not _left(settings.home_dir / "slots")


def _left(folder: Path) -> list[str]:
    """Files that should have gone with the process that made them."""
    kept = re.compile(r"id|key\.pem|lock|writer|spool-[0-9a-f]+\.db|store-[0-9a-f]+\.json")
    return [path.name for path in folder.glob("*/*") if not kept.fullmatch(path.name)]


async def test_a_node_interrupted_while_it_appends_ends_soon_and_its_chain_is_sealed(
    tmp_path: Path, shared_server: Server, start_author: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, shared_server)
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
    author = await start_author(settings, Job("stream", table, "me", callers=_CALLERS))
    await author.until_more(50)
    author.interrupt()
    assert await author.ended(_PATIENCE_S) == 130
    assert author.errors == ""
    async with Mesh.open_command(settings) as mesh:
        await assert_log_tells_the_same(mesh, table, author.reports[1:], unreported=_CALLERS)
        (chain,) = await mesh.oplog.verify()
        assert chain.sealed_to == chain.entries - 1
    assert not _left(settings.home_dir / "slots")
