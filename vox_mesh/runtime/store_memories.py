"""Store memories: what the nodes of a home remember of the database that the settings choose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vox_mesh.model.base.backends import Backend
from vox_mesh.oplog.step_memory import StepMemory
from vox_mesh.oplog.witness import MemoryFile, RememberedStore, replaced_path
from vox_mesh.runtime.open_store import target_of
from vox_mesh.store.slots import ID_FILE, slots

if TYPE_CHECKING:
    from vox_mesh.settings import Settings


def memory_file_name(settings: Settings) -> str:
    """Return the name of the file in a slot with the memory of this database."""
    return f"store-{target_of(settings)}.json"


def has_other_databases(settings: Settings) -> bool:
    """Return whether nodes of this home have worked with another database, too."""
    own = memory_file_name(settings)
    return any(path.name != own for slot in slots(settings.home_dir) for path in slot.glob("store-*.json"))


def step_memory(settings: Settings) -> StepMemory | None:
    """Return the memory, shared by all processes of the home, of how the ownership of this mesh passed on."""
    if settings.backend is Backend.MEMORY:
        return None
    mesh = hashlib.sha256(f"{settings.scope_id}\n{settings.repository_id}".encode()).hexdigest()[:12]
    return StepMemory(settings.home_dir / f"owners-{target_of(settings)}-{mesh}.json")


def remembered_stores(settings: Settings) -> list[RememberedStore]:
    """Return what each node of the home remembers of the database, or of one that was in its place."""
    return [] if settings.backend is Backend.MEMORY else list(_read(settings))


def _read(settings: Settings) -> Iterator[RememberedStore]:
    for slot in sorted(slots(settings.home_dir)):
        path = slot / memory_file_name(settings)
        try:
            node_id = (slot / ID_FILE).read_text().strip()
        except OSError:
            continue
        if (memory := MemoryFile(path).load()) is not None:
            yield RememberedStore(node_id, memory, f"the memory of node {node_id}")
        replaced = replaced_path(path)
        if (memory := MemoryFile(replaced).load()) is not None:
            yield RememberedStore(node_id, memory, f"the memory in {replaced}")
