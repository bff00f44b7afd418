"""Scheduled backups of several scopes in one process: each scope has its own."""

from __future__ import annotations

from pathlib import Path

from tests.scopes.conftest import settle
from tests.support.store.backing_up import schedule_of
from vox_mesh import Settings
from vox_mesh.cli.node.served_scopes import open_nodes
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, BackupOwner
from vox_mesh.runtime.backups.stored_backups import StoredBackups
from vox_mesh.runtime.scopes import settings_of_scopes
from vox_mesh.store.targets.target import FolderTarget


async def test_each_scope_is_backed_up_next_to_the_others(on_files: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    settings = settings_of_scopes(on_files.model_copy(update={"backup_dir": folder}), ("west", "east"))
    async with open_nodes(settings) as nodes:
        await settle(*nodes)
        for node in nodes:
            await node.supervisor.stop("backups")
        made = [await schedule_of(node).run_once() for node in nodes]
    for scope, backup in zip(("west", "east"), made, strict=True):
        assert backup is not None, scope
        mesh = BackupMesh(scope, on_files.repository_id)
        stored = StoredBackups(FolderTarget(folder / scope), BackupOwner(mesh))
        assert await stored.listed() == [backup]


def test_each_scope_has_a_prefix_of_its_own_in_a_bucket(on_files: Settings) -> None:
    process = on_files.model_copy(update={"backup_url": "https://s3.example.com/bucket/backups/"})
    assert process.in_scope("west").backup_url == "https://s3.example.com/bucket/backups/west"
    assert on_files.in_scope("west").backup_url is None
    assert on_files.in_scope("west").backup_dir is None
