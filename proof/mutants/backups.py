"""Bugs in scheduled backups."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

_WORKLOADS: Final = ("backups", "oplog", "jobs", "locks", "messages")

BACKUP_PLANTS: Final = (
    PlantedBug(
        "shared-chunk-removed",
        "with an old backup, chunks are removed that later ones share",
        (
            Code(
                "vox_mesh.runtime.backups.chunk_store:ChunkStore.remove",
                "if chunk not in needed:",
                "if chunk not in ():",
            ),
        ),
        ("backups-restore",),
        _WORKLOADS,
        instrument=Instrument.FILE,
        faults=("kill",),
    ),
    PlantedBug(
        "backup-of-several-moments",
        "a backup takes its time, and reads each page at another moment",
        (
            Code(
                "vox_mesh.store.engines.file:FileEngine.snapshot",
                'await ask(Statement("BEGIN"))',
                'await ask(Statement("SELECT 1"))',
            ),
            Code(
                "vox_mesh.store.schema.copying:_copy_table",
                "    copied, count = 0, 1\n",
                "    copied, count = 0, 1\n    await __import__('asyncio').sleep(0.02)\n",
            ),
        ),
        ("backups-restore",),
        _WORKLOADS,
        instrument=Instrument.FILE,
        faults=("kill",),
    ),
)
