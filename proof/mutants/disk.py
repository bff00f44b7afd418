"""Bugs in the files of a node: the replica and the spool. Only real processes have those."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

DISK_PLANTS: Final = (
    PlantedBug(
        "half-applied",
        "the last page of a transaction does not reach the replica",
        (
            Code(
                "vox_mesh.store.replica.pages:PageFile.add",
                "piece = frames[start : start + _PIECE]",
                "piece = frames[start : start + _PIECE][:-1] or frames",
            ),
        ),
        ("replica-equal",),
        instrument=Instrument.SERVER,
        faults=("delay", "cut", "pause", "writer-storm"),
    ),
    PlantedBug(
        "copy-dropped-at-compaction",
        "a replica drops its copy when the server has compacted its log",
        (
            Code(
                "vox_mesh.store.replica.pushed:PushedReplica._take_snapshot",
                "first = self._expect()",
                "await self._copy.start_over(self._copy.log_id); first = self._expect()",
            ),
        ),
        ("replica-keeps",),
        ("effects", "writes", "messages"),
        instrument=Instrument.SERVER,
        faults=("compaction", "delay", "cut", "writer-storm"),
    ),
    PlantedBug(
        "spool-loses-some",
        "the last write of a batch is not spooled",
        (Code("vox_mesh.store.spool.spool:Spool.keep", 'VALUES (?)", lines)', 'VALUES (?)", lines[:-1])'),),
        ("chains-complete", "messages-acked"),
        instrument=Instrument.SERVER,
    ),
    PlantedBug(
        "spool-reorders",
        "the spool is replayed with the newest write first",
        (Code("vox_mesh.store.spool.spool:Spool.first", "return found", "return found[::-1]"),),
        ("jobs-spooled",),
        ("jobs",),
        instrument=Instrument.SERVER,
        faults=("cut", "server-stall", "slow-answers"),
    ),
    PlantedBug(
        "spool-renames",
        "a replayed write has another idempotency key",
        (Code("vox_mesh.store.spool.spool:decode", 'key = record["key"]', 'key = record["key"][:-1] + "0"'),),
        ("chains-complete", "messages-acked", "messages-once"),
        instrument=Instrument.SERVER,
    ),
)
