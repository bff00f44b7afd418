"""The schedule of backups that the settings choose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vox_mesh.model.base.backends import Backend
from vox_mesh.runtime.archive_target import backup_target
from vox_mesh.runtime.open_store import open_engine

if TYPE_CHECKING:
    from vox_mesh.nodes.clock import Dependencies
    from vox_mesh.runtime.backups.schedule import BackupSchedule
    from vox_mesh.runtime.services import MeshServices
    from vox_mesh.settings import Settings


def backup_schedule(
    settings: Settings, mesh: MeshServices, dependencies: Dependencies
) -> BackupSchedule | None:
    """Return the schedule of a node; `None` if the settings name no place for backups."""
    target = backup_target(settings)
    if target is None or settings.backend is Backend.MEMORY:
        return None
    from vox_mesh.runtime.backups.schedule import BackupSchedule  # imported late: few nodes have one

    parts = mesh.identity.node_id, mesh.store, mesh.clock, mesh.locks, target
    return BackupSchedule(
        *parts,
        open_database=partial(open_engine, settings),
        interval_s=settings.backup_interval,
        keep=settings.backup_keep,
        chance=dependencies.chance,
        monotonic=dependencies.monotonic,
    )
