"""The store goes back in time: tokens rise, nothing is granted twice, and nodes join again by themselves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.oplog.authoring import NOTE_KIND
from tools.homes import FILE, MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Script, Settings, Statement
from vox_mesh.errors import LockLost, OutcomeUnknown, StaleFence, StaleIncarnation
from vox_mesh.model.nodes.store_memory import INCARNATIONS_RAISED_BY, ROLLED_BACK, TOKENS_RAISED_BY
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.batch import Batch
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named

_NEVER_S = "1h"


def node_on(case: HomeCase, server: Server, folder: Path, name: str, **more: Any) -> Settings:
    """The settings of a node that ticks only when it is asked to."""
    values = {"scope_id": "one", "node_id": name, "tick": _NEVER_S, **more}
    return case.settings(folder / name, server, **values)


async def rolled_back(mesh: Mesh) -> list[dict[str, Any]]:
    """What the log says of rollbacks."""
    return [orjson.loads(entry.payload) for entry in await mesh.oplog.tail(1_000, kind=ROLLED_BACK)]


async def guarded(mesh: Mesh, lock: Any) -> None:
    """A write under a lock."""
    await mesh.store.write(Script(mesh.locks.guard(lock)))


@pytest.mark.parametrize("case", [MESH, MESH_HTTP], ids=str)
async def test_a_lock_of_the_lost_time_and_a_new_one_are_never_taken_for_each_other(
    case: HomeCase, server: Server, tmp_path: Path
) -> None:
    a_settings, b_settings = (node_on(case, server, tmp_path, name) for name in "ab")
    async with Mesh.open(a_settings) as a, Mesh.open(b_settings) as b:
        await a.locks.release(await a.locks.acquire("task:1"))
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()
        old = await a.locks.acquire("task:1")
        server.put_back(tmp_path / "copy")
        new = await b.locks.acquire("task:1")
        assert new.fence_token > old.fence_token
        with pytest.raises(StaleFence):
            await a.locks.renew(old)
        with pytest.raises(StaleFence):
            await guarded(a, old)
        assert not await a.locks.release(old)
        await guarded(b, new)
        await b.locks.renew(new)


async def test_two_nodes_under_which_the_store_goes_back_join_again(server: Server, tmp_path: Path) -> None:
    a_settings, b_settings = (node_on(MESH, server, tmp_path, name) for name in "ab")
    async with Mesh.open(a_settings) as a, Mesh.open(b_settings) as b:
        for node in (a, b):
            node.oplog.register(NOTE_KIND)
            await node.oplog.append(NOTE_KIND.name, {"n": 0})
        kept = await a.locks.acquire("task:kept")
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()
        before = (a.incarnation, b.incarnation)
        for node in (a, b):
            await node.oplog.append(NOTE_KIND.name, {"n": 1})
            await node.run_once()
        lost = await b.locks.acquire("task:lost")
        known = a._writer.witness.memory
        server.put_back(tmp_path / "copy")

        await asyncio.gather(a.run_once(), b.run_once())
        for node in (a, b):
            await node.oplog.append(NOTE_KIND.name, {"n": 2})
        (answer,) = await rolled_back(a)
        assert answer["epoch"] == 1
        assert answer["log"]["known_id"] >= known.entry_id > answer["log"]["last_id"]
        for node, was in zip((a, b), before, strict=True):
            assert (node.incarnation or 0) > (was or 0) + INCARNATIONS_RAISED_BY
        notes = [orjson.loads(e.payload)["n"] for e in await a.oplog.tail(100, kind=NOTE_KIND.name)]
        assert notes == [0, 0, 2, 2], "what was acknowledged in the lost time is gone"
        assert not [report for report in await a.oplog.verify() if report.problem]
        await a.locks.renew(kept)  # it was held all the time
        with pytest.raises(StaleFence):
            await b.locks.renew(lost)
        assert (await b.locks.acquire("task:lost")).fence_token > lost.fence_token + TOKENS_RAISED_BY


async def test_after_two_rollbacks_to_one_copy_no_incarnation_comes_twice(
    tmp_path: Path, server: Server
) -> None:
    """The second rollback reaches back to before the first one's fence."""
    a_settings, b_settings = (node_on(MESH, server, tmp_path, name) for name in "ab")
    async with Mesh.open(a_settings) as a, Mesh.open(b_settings) as b:
        for node in (a, b):
            node.oplog.register(NOTE_KIND)
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()
        seen = [(a.incarnation, b.incarnation)]
        for _ in range(2):
            for node in (a, b):
                await node.oplog.append(NOTE_KIND.name, {})
                await node.run_once()
            server.put_back(tmp_path / "copy")
            for node in (a, b):
                await node.run_once()
                await node.oplog.append(NOTE_KIND.name, {})
            seen.append((a.incarnation, b.incarnation))
        for incarnations in zip(*seen, strict=True):
            assert len(set(incarnations)) == len(seen)
            assert list(incarnations) == sorted(map(int, incarnations))


async def test_two_fences_of_one_number_do_not_let_two_processes_be_current(tmp_path: Path) -> None:
    """A second rollback loses the first fence, and a node that never knew of it repeats its number."""
    settings = FILE.settings(tmp_path, None, scope_id="one", node_id="a", tick=_NEVER_S)
    fence = named("rollback")["raise_incarnations"]
    async with Mesh.open(settings) as a:
        mesh = (settings.scope_id, settings.repository_id)
        joined = a.incarnation
        await a.store.write(
            Script(
                Statement(fence, (*mesh, 1)), Statement("UPDATE store_epochs SET epoch = 1, op_id = 'first'")
            )
        )
        with suppress(OutcomeUnknown):  # the tick that finds out
            await a.run_once()
        await a.run_once()
        first = a.incarnation
        await a.store.write(
            Script(
                Statement("UPDATE node_incarnations SET incarnation = ?, beats = 1", (joined,)),
                Statement(fence, (*mesh, 1)),
                Statement("UPDATE store_epochs SET op_id = 'second' WHERE op_id = 'first'"),
                Statement("UPDATE node_incarnations SET incarnation = incarnation + 1"),
                Statement("UPDATE node_incarnations SET beats = beats + 1048577"),  # a second later
                Statement("UPDATE mesh_heartbeats SET incarnation = ?", (first,)),
            )
        )
        (row,) = await a.store.read("SELECT incarnation FROM node_incarnations")
        assert row["incarnation"] == first, "another process has joined with the same number"
        with suppress(OutcomeUnknown):
            await a.run_once()
        with pytest.raises(StaleIncarnation):
            await a.run_once()


async def test_a_body_under_a_lock_of_the_lost_time_is_stopped(server: Server, tmp_path: Path) -> None:
    async with Mesh.open(node_on(MESH, server, tmp_path, "a")) as a:
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()

        async def work() -> None:
            async with a.locks.hold("task:1", ttl=300.0):
                held.set()
                await asyncio.Event().wait()

        held = asyncio.Event()
        working = asyncio.create_task(work())
        await held.wait()
        await a.run_once()
        server.put_back(tmp_path / "copy")
        await a.run_once()
        with pytest.raises(LockLost):
            await working


async def test_a_node_that_was_away_finds_out_before_its_first_write(server: Server, tmp_path: Path) -> None:
    a_settings, b_settings = (node_on(MESH, server, tmp_path, name) for name in "ab")
    async with Mesh.open(a_settings) as a:
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()
        await a.run_once()
        async with Mesh.open(b_settings) as b:
            await b.run_once()
            lost = await b.locks.acquire("task:1")
        server.put_back(tmp_path / "copy")
        await a.run_once()
        async with Mesh.open(b_settings) as b:
            assert len(await rolled_back(b)) == 1
            assert (await b.locks.acquire("task:1")).fence_token > lost.fence_token


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_a_node_that_starts_on_a_store_that_was_put_back_fences_it(
    case: HomeCase, server: Server, tmp_path: Path
) -> None:
    settings = (
        node_on(case, server, tmp_path, "a")
        if case is MESH
        else FILE.settings(tmp_path, None, scope_id="one", node_id="a", tick=_NEVER_S)
    )
    async with Mesh.open(settings) as a:
        await a.locks.acquire("task:0")
    put_back = _kept(case, server, settings, tmp_path)
    async with Mesh.open(settings) as a:
        old = await a.locks.acquire("task:1")
        was = a.incarnation
    put_back()
    async with Mesh.open(settings) as a:
        (answer,) = await rolled_back(a)
        assert answer["incarnation"] == was
        assert answer["fence_token"] == old.fence_token
        assert (await a.locks.acquire("task:1")).fence_token > old.fence_token + TOKENS_RAISED_BY
        assert not [report for report in await a.oplog.verify() if report.problem]
    async with Mesh.open(settings) as a:
        assert len(await rolled_back(a)) == 1, "it is found once"


def _kept(case: HomeCase, server: Server, settings: Settings, folder: Path) -> Callable[[], None]:
    """Keep a copy of the store; what puts it back."""
    if case is MESH:
        server.end()
        server.copy_data(folder / "copy")
        server.start()
        return lambda: server.put_back(folder / "copy")
    path = settings.file_path
    shutil.copyfile(path, folder / "copy")

    def put_back() -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        shutil.copyfile(folder / "copy", path)

    return put_back


async def test_a_new_database_is_no_rollback(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="one", node_id="a", tick=_NEVER_S)
    async with Mesh.open(settings) as a:
        assert a.incarnation == 1
    for path in settings.file_path.parent.glob(f"{settings.file_path.name}*"):
        path.unlink()
    async with Mesh.open(settings) as a:
        assert a.incarnation == 1
        assert not await rolled_back(a)


async def test_a_real_replacement_is_still_fatal(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="one", node_id="a", tick=_NEVER_S)
    async with Mesh.open(settings) as a:
        newer = "UPDATE node_incarnations SET incarnation = incarnation + 1 WHERE node_id = 'a'"
        await a.store.write(Script(Statement(newer)))
        with pytest.raises(StaleIncarnation):
            await a.run_once()


async def test_a_process_that_was_replaced_before_a_rollback_does_not_join_again(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="one", node_id="a", tick=_NEVER_S)
    async with Mesh.open(settings) as a:
        await a.run_once()
        rolled_back_and_fenced = (
            f"UPDATE node_incarnations SET incarnation = incarnation + 1 + {2**32}, beats = 0",
            "UPDATE store_epochs SET op_id = 'another'",
        )
        await a.store.write(Script(*map(Statement, rolled_back_and_fenced)))
        with suppress(OutcomeUnknown):  # the tick that finds out
            await a.run_once()
        with pytest.raises(StaleIncarnation):
            await a.run_once()


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_a_store_that_goes_back_to_before_a_migration_is_migrated_again(
    case: HomeCase, server: Server, tmp_path: Path
) -> None:
    settings = case.settings(tmp_path, server, scope_id="one", node_id="a", tick=_NEVER_S)
    async with Mesh.open(settings) as a:
        lost = await a.locks.acquire("task:1")
        engine = await open_engine(settings)
        back = Batch()
        for statement in (
            *(f"DROP TABLE {name}" for name in ("store_epochs", "database_clock", "clock_witnesses")),
            "ALTER TABLE node_incarnations DROP COLUMN beats",
            "UPDATE node_incarnations SET incarnation = 0",
            "DELETE FROM distributed_locks",
            "DELETE FROM mesh_schema",
            "INSERT INTO mesh_schema (version, oldest_code) VALUES (7, 1)",
        ):
            back.add(statement)
        assert (await engine.run(back.seal())).committed
        await engine.close()
        await a.run_once()
        assert len(await rolled_back(a)) == 1
        assert (await a.locks.acquire("task:1")).fence_token > lost.fence_token
        assert (await a.store.status()).schema_version == VERSION


async def test_a_message_in_hand_stays_there_when_its_node_joins_again(
    server: Server, tmp_path: Path
) -> None:
    async with Mesh.open(node_on(MESH, server, tmp_path, "a")) as a:
        await a.messages.send("z", "x")
        (message,) = await a.messages.poll_inbox_from_db("z")
        server.end()
        server.copy_data(tmp_path / "copy")
        server.start()
        await a.run_once()
        server.put_back(tmp_path / "copy")
        await a.run_once()
        assert a.rollbacks == 1
        assert await a.messages.poll_inbox_from_db("z") == []
        assert await a.messages.ack(message)
