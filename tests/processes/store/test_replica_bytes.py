"""Whatever is done to it, to its server and to the line between: a replica is its primary, byte for byte."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.replica.disturbed_replica import DisturbedReplica, Trouble, scene
from tests.support.replica.replica_processes import (
    COMPACTING_FLAGS,
    PUSHED,
    SAFE_FLAGS,
    assert_same_pages,
    file_of,
    fresh_copy,
    node_settings,
)
from tests.support.running import lengths
from tools.sqld import Server
from vox_mesh import Script, Statement, open_store

_TRIES = 5
_NOT_AS_LEFT = "not as it was left"


_LONG = pytest.param(SAFE_FLAGS, id="long log")
_COMPACTED = pytest.param(COMPACTING_FLAGS, id="compacted log")


@pytest.fixture(params=[_COMPACTED, *lengths.in_soak(_LONG)])
def either_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that keeps its log, and one that compacts it all the time."""
    with Server(flags=request.param) as server:
        yield server


async def _troubled(scene: DisturbedReplica, trouble: Trouble) -> None:
    for _ in range(lengths.REPLICA_ROUNDS):
        async with scene.workload.running():
            for _ in range(lengths.REPLICA_FAULTS):
                await scene.workload.until_more(3)
                await trouble(scene)
            await scene.workload.until_more(3)
        await scene.compare()
    await scene.compare_with_files()
    print(f"{scene.workload.done} changes")


@pytest.mark.soak
async def test_it_survives_each_kill_of_its_reader_and_is_never_fetched_again(
    tmp_path: Path, either_server: Server, seed: int
) -> None:
    async with scene(tmp_path, either_server, Random(seed)) as stage:
        for _ in range(_TRIES):  # on a busy machine, a kill may come too late
            await _troubled(stage, DisturbedReplica.kill_reader)
            if stage.cut_short:
                break
        else:
            pytest.skip("no reader was killed in the middle of a change")
        print(f"{stage.cut_short} changes were cut short")
        # Survived, not fetched again: what was on the disk was always enough to go on from.
        assert not [each.errors for each in stage.readers if _NOT_AS_LEFT in each.errors]


@pytest.mark.soak
@pytest.mark.parametrize(
    "trouble",
    [DisturbedReplica.kill_server, DisturbedReplica.cut_line],
    ids=["the server is killed", "the line is cut in a frame"],
)
async def test_it_is_its_primary_byte_for_byte_though(
    tmp_path: Path, either_server: Server, trouble: Trouble, seed: int
) -> None:
    async with scene(tmp_path, either_server, Random(seed)) as stage:
        await _troubled(stage, trouble)


@pytest.mark.soak
async def test_it_catches_up_when_its_line_falls_silent_forever(
    tmp_path: Path, server: Server, seed: int
) -> None:
    async with scene(tmp_path, server, Random(seed)) as stage:
        async with stage.workload.running():
            await stage.silence_line()
            await stage.workload.until_more(3)
        await stage.compare()
        await stage.compare_with_files()


@pytest.mark.parametrize(
    ("flags", "further"),
    [(SAFE_FLAGS, 0), (SAFE_FLAGS, 6), (SAFE_FLAGS, 20), (COMPACTING_FLAGS, 600)],
    ids=["behind us", "as far as we are", "past us", "past us and compacted"],
)
async def test_a_primary_put_back_to_an_older_state_is_noticed(
    tmp_path: Path, flags: tuple[str, ...], further: int
) -> None:
    with Server(flags=flags) as server:
        await _put_back(tmp_path, server, further)


async def _put_back(tmp_path: Path, server: Server, further: int) -> None:
    def insert(text: str) -> Script:
        return Script(Statement("INSERT INTO put_back (a) VALUES (?)", (text,)))

    ours = node_settings(PUSHED, tmp_path, server, "ours")
    data, kept = server._folder / "data", tmp_path / "kept"
    async with await open_store(ours) as store:
        await store.write(Script(Statement("CREATE TABLE put_back (a)")))
        await asyncio.to_thread(server.end)
        shutil.copytree(data, kept)
        server.start()
        for _ in range(6):
            await store.write(insert("lost"))
        await store.synced()
    await asyncio.to_thread(server.end)
    shutil.rmtree(data)
    shutil.copytree(kept, data)
    server.start()
    async with await open_store(PUSHED.settings(tmp_path / "theirs", server)) as other:
        for _ in range(further):
            await other.write(insert("new"))
    async with await open_store(ours) as store:
        await store.synced()
        rows = await store.read("SELECT a FROM put_back")
        assert [row["a"] for row in rows] == ["new"] * further
        assert rows.age_s, "the replica answers"
    _, pages = await fresh_copy(node_settings(PUSHED, tmp_path, server, "fresh"))
    assert_same_pages(file_of(ours).read_bytes(), pages, "a first copy")
