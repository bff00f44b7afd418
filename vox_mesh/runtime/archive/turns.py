"""A node's turns at archiving, if its settings name an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vox_mesh.runtime.archive.maintenance import ArchiveMaintenance
    from vox_mesh.runtime.services import MeshServices
    from vox_mesh.settings import Settings


def archive_maintenance(
    mesh: MeshServices, settings: Settings, chance: Callable[[], float], monotonic: Callable[[], float]
) -> ArchiveMaintenance | None:
    """Return the turns; `None` without an archive."""
    if settings.archive_dir is None and settings.archive_url is None:
        return None
    from vox_mesh.runtime.archive.maintenance import ArchiveMaintenance  # imported late: few nodes have one

    return ArchiveMaintenance(mesh, settings, chance, monotonic)
