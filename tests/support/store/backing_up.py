"""Nodes that make scheduled backups, and what is stored of them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from tests.support.nodes.clocks import Clock
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.runtime.backups.backup_index import StoredBackup
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, BackupOwner, owner_at
from vox_mesh.runtime.backups.schedule import BackupSchedule
from vox_mesh.runtime.backups.stored_backups import StoredBackups
from vox_mesh.store.targets.target import FileTarget, FolderTarget

DAY_S: Final = 86_400.0


@asynccontextmanager
async def backing_up_node(
    folder: Path, clock: Clock, name: str = "one", **more: Any
) -> AsyncIterator[MeshNode]:
    """A node that backs up into a folder every day."""
    values = {
        "backup_dir": folder / "backups",
        "backup_keep": 2,
        "node_id": name,
        "tick": "1h",
        "scope_id": "mesh",
    }
    settings = FILE.settings(folder, None, **(values | more))
    async with Mesh.open(settings, Dependencies(monotonic=clock, elapsed=clock)) as node:
        began = clock.now
        yield node
        clock.now = began


def stored_in(target: Path | FileTarget) -> StoredBackups:
    """The backups of these nodes in a folder or another target."""
    mesh = BackupMesh("mesh", "default")
    return StoredBackups(FolderTarget(target) if isinstance(target, Path) else target, BackupOwner(mesh))


def schedule_of(node: MeshNode) -> BackupSchedule:
    """The schedule of a node that has one."""
    assert node.backup_schedule is not None
    return node.backup_schedule


async def back_up_now(node: MeshNode, target: FileTarget) -> StoredBackup:
    """Make a backup in this target, whether or not one is due."""
    schedule = schedule_of(node)
    owner = await owner_at(node.store.read, node.store.mesh_id)
    assert owner is not None
    async with schedule._leading() as term:
        assert term is not None
        return await schedule._make(StoredBackups(target, owner), term)


def dump_of(path: Path) -> list[str]:
    """All statements that make a database what it is."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return list(database.iterdump())
