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
    PlantedBug(
        "uncounted-commit-unseen",
        "a read of the primary counts as a read of the commits that the server had counted by then",
        (
            Code(
                "vox_mesh.store.replica.read_watermark:ReadWatermark.note",
                "if not has_committed and frame",
                "if frame is None and frame",
            ),
        ),
        ("test_a_read_may_show_one_commit_more_than_it_says",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "read-taken-for-commit",
        "the answer to a request that has changed nothing counts as one that has",
        (
            Code(
                "vox_mesh.store.engines.hrana.codec:has_committed",
                "return decoded.committed and any(",
                "return decoded.committed or any(",
            ),
        ),
        ("test_an_engine_says_which_answers_are_of_commits",),
        instrument=Instrument.STORE,
    ),
)
