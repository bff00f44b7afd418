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
        "query-taken-as-exact",
        "the position of a query's answer is taken as exact, though the query may have seen one commit more",
        (
            Code(
                "vox_mesh.store.replica.read_watermark:ReadWatermark.note", "if is_query and", "if False and"
            ),
        ),
        ("test_a_query_may_show_one_commit_more_than_it_says",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "hello-of-unknown-position",
        "the answer to a write over a new connection counts as a hello at the position seen before",
        (
            Code(
                "vox_mesh.store.replica.read_watermark:ReadWatermark.latest_position",
                "return None if frame is None or log_id is None else (log_id, frame)",
                "return None if self._position is None else self._position[:2]",
            ),
        ),
        ("test_only_an_answer_whose_log_is_known_has_a_position",),
        instrument=Instrument.STORE,
    ),
)
