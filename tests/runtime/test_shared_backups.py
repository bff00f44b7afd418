"""Backups in a place that other meshes, other nodes or earlier versions write to as well."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.nodes.clocks import Clock
from tests.support.store.backing_up import DAY_S, backing_up_node, schedule_of, stored_in
from tools.homes import FILE
from vox_mesh import Settings
from vox_mesh.cli.doctor.checks import CheckContext, CheckState
from vox_mesh.cli.doctor.database_checks import backups
from vox_mesh.errors import ArchiveFailed
from vox_mesh.node import MeshNode
from vox_mesh.runtime.backups.backup_index import StoredBackup
from vox_mesh.runtime.backups.stored_backups import INDEX
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.engine import Engine
from vox_mesh.store.targets.target import FolderTarget

_STRANGER: Final = {"name": "vox-mesh-1.json", "at_ms": 1, "bytes": 1, "sha256": "", "node_id": "stranger"}


def index_in(folder: Path) -> dict[str, Any]:
    """The stored index."""
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


@pytest.mark.parametrize("scope_id", ["another", "mesh"], ids=["another name", "another database"])
async def test_the_backups_of_another_mesh_are_refused_and_left_alone(scope_id: str, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    async with backing_up_node(tmp_path, clock) as node:
        made = await schedule_of(node).run_once()
        assert made is not None
        assert index_in(folder)["mesh"].keys() == {"scope_id", "repository_id", "database_id"}
    before = (folder / INDEX).read_bytes()
    async with backing_up_node(tmp_path / "other", clock, backup_dir=folder, scope_id=scope_id) as other:
        clock.now += 2 * DAY_S
        with pytest.raises(ArchiveFailed, match="are of another mesh: scope 'mesh'"):
            await schedule_of(other).run_once()
        assert schedule_of(other).newest_ms is None, "a backup of another mesh is none of this one"
    assert (folder / INDEX).read_bytes() == before
    assert await stored_in(folder).listed() == [made]


async def test_an_index_that_names_no_mesh_is_adopted_if_nodes_of_this_one_made_the_backups(
    tmp_path: Path,
) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    async with backing_up_node(tmp_path, clock) as node:
        made = await schedule_of(node).run_once()
        index = index_in(folder)
        mesh = index.pop("mesh")
        (folder / INDEX).write_text(json.dumps({"backups": index["backups"]}))
        clock.now += DAY_S + 1
        assert await schedule_of(node).run_once() is not None
        assert index_in(folder)["mesh"] == mesh
        assert made in await stored_in(folder).listed()
        (folder / INDEX).write_text(json.dumps({"backups": [*index["backups"], _STRANGER]}))
        clock.now += DAY_S + 1
        with pytest.raises(ArchiveFailed, match="this one has no node stranger"):
            await schedule_of(node).run_once()
        assert len(await stored_in(folder).listed()) == 2, "a command lists them"


async def test_a_copy_of_the_mesh_with_later_tokens_keeps_the_index(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    async with backing_up_node(tmp_path, clock) as node:
        assert await schedule_of(node).run_once() is not None
        index = index_in(folder)
        index["fence_token"] = later = index["fence_token"] + 2**40
        (folder / INDEX).write_text(json.dumps(index))
        clock.now += DAY_S + 1
        with pytest.raises(ArchiveFailed, match=f"has the fencing token {later}"):
            await schedule_of(node).run_once()
        assert index_in(folder) == index


class StallingTarget(FolderTarget):
    """A folder of a node that stalls once, after it has read its first chunk back."""

    def __init__(self, folder: Path, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(folder)
        self._meanwhile: list[Callable[[], Awaitable[object]]] = [meanwhile]

    async def read(self, name: str, limit: int) -> bytes | None:
        """Read a file."""
        content = await super().read(name, limit)
        if "chunk-" in name and self._meanwhile:
            await self._meanwhile.pop()()
        return content


async def end_lease(node: MeshNode) -> None:
    """End the lease of the leader at the database: it does not notice."""
    lock = schedule_of(node)._leadership._lock
    assert lock is not None
    await node.locks.release(lock)


@pytest.mark.parametrize("notices", [False, True], ids=["late", "after it leads again"])
async def test_a_leader_that_stalled_past_its_lease_leaves_the_index_alone(
    notices: bool, tmp_path: Path
) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    made: list[StoredBackup | None] = []
    async with AsyncExitStack() as ending:
        one = await ending.enter_async_context(backing_up_node(tmp_path, clock))
        two = await ending.enter_async_context(backing_up_node(tmp_path, clock, "two"))

        async def meanwhile() -> None:
            await end_lease(one)
            made.append(await schedule_of(two).run_once())
            if notices:
                leadership = schedule_of(one)._leadership
                leadership._lock = None
                assert await leadership.keep(60.0), "under another token"

        schedule_of(one)._target = StallingTarget(folder, meanwhile)
        assert await schedule_of(one).run_once() is None
    stored = stored_in(folder)
    assert [None, *await stored.listed()] == [None, *made]
    assert made[0] is not None
    await stored.fetch(made[0].name, tmp_path / "fetched.db")


async def test_doctor_reports_backups_of_another_mesh_and_of_the_future(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    async with backing_up_node(tmp_path, clock) as node:
        assert await schedule_of(node).run_once() is not None
    settings = FILE.settings(tmp_path, None, scope_id="mesh", backup_dir=folder)
    async with closing_engine(settings) as engine:
        context = CheckContext(settings, {})
        context.engine = engine
        found = await backups(context)
        assert found is not None
        assert found.state is CheckState.OK, found
        index = index_in(folder)
        ahead = index["backups"][0] | {"name": "vox-mesh-2.json", "at_ms": 250_000_000_000_000}
        (folder / INDEX).write_text(json.dumps(index | {"backups": [*index["backups"], ahead]}))
        found = await backups(context)
        assert found is not None
        assert "1 from the future" in found.found
        index["mesh"]["database_id"] = "another"
        (folder / INDEX).write_text(json.dumps(index))
        with pytest.raises(ArchiveFailed, match="of another mesh"):
            await backups(context)


@asynccontextmanager
async def closing_engine(settings: Settings) -> AsyncIterator[Engine]:
    """The database of these settings."""
    engine = await open_engine(settings)
    try:
        yield engine
    finally:
        await engine.close()
