"""Bugs in the op log, and in membership."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql

LOG_PLANTS: Final = (
    PlantedBug(
        "link-skipped",
        "an entry links to the one before the last",
        (
            Code(
                "vox_mesh.oplog.entries:EntryBuilder.build",
                "        prev = own\n",
                "        prev = own if len(entries) != 2 else prev\n",
            ),
        ),
        ("chains-whole",),
        ("oplog",),
    ),
    PlantedBug(
        "cause-not-named",
        "the completion of a job does not name the op that started it",
        (
            Code(
                "vox_mesh.jobs.worker.finisher:AttemptResult.causes",
                "return (self.job.last_op, *self.inferences)",
                "return self.inferences",
            ),
        ),
        ("causes-first",),
        ("jobs",),
    ),
    PlantedBug(
        "payload-not-hashed",
        "the hash of an entry does not cover its payload",
        (Code("vox_mesh.model.oplog.chain:hash_of", "orjson.Fragment(payload)", 'orjson.Fragment("{}")'),),
        ("chains-whole",),
        ("oplog",),
    ),
    PlantedBug(
        "entry-left-out",
        "the last entry of a batch is not written",
        (
            Code(
                "vox_mesh.oplog.entries:EntryBuilder.build",
                "for script in _in_order(scripts):",
                "for script in list(_in_order(scripts))[: max(1, len(scripts) - 1)]:",
            ),
        ),
        ("chains-complete", "chains-whole"),
        ("oplog", "jobs"),
    ),
    PlantedBug(
        "chain-cut-off",
        "a node that restarts cuts off the end of its chain",
        (
            Sql(
                "nodes",
                "refuse_if_in_use",
                "INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS ( SELECT 1 FROM mesh_heartbeats",
                "DELETE FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 "
                "AND seq = (SELECT max(seq) FROM agent_oplog WHERE scope_id = ?1 AND node_id = ?3"
                ") AND NOT EXISTS (SELECT 1 FROM mesh_heartbeats",
            ),
        ),
        ("heads-kept", "chains-complete"),
        ("oplog",),
    ),
    PlantedBug(
        "applied-before-its-time",
        "an op is applied before its dependencies exist",
        (
            Code(
                "vox_mesh.oplog.pending_ops:PendingOps.state_after",
                'return DependencyState.APPLIED if found <= {"applied"} else DependencyState.DEFERRED',
                "return DependencyState.APPLIED",
            ),
        ),
        ("ops-in-order", "log-goes-on"),
        ("oplog",),
    ),
    PlantedBug(
        "dead-never-told",
        "a silent node counts as alive",
        (
            Code(
                "vox_mesh.model.nodes.liveness:missed_ticks",
                "return max(0, int(silent_ms / tick_ms - _TOLERANCE))",
                "return 0",
            ),
        ),
        ("dead-told",),
        ("writes", "looks"),
    ),
    PlantedBug(
        "spare-time-ignored",
        "a node that lets ticks pass, as it has announced, counts as late",
        (Code("vox_mesh.model.nodes.liveness:missed_ticks", "silent_ms -= spare_ms", "pass"),),
        ("spares-kept",),
        ("spares",),
        faults=("kill",),
    ),
    PlantedBug(
        "spare-time-unlimited",
        "a node that has announced to let ticks pass never counts as late",
        (
            Code(
                "vox_mesh.model.nodes.liveness:missed_ticks",
                "silent_ms -= spare_ms",
                "silent_ms = 0 if spare_ms else silent_ms",
            ),
        ),
        ("spares-kept",),
        ("spares",),
        faults=("kill",),
    ),
    PlantedBug(
        "dead-by-own-clock",
        "the silence of other nodes is measured by this machine's clock",
        (
            Code(
                "vox_mesh.nodes.clock:MeshClock.now_ms",
                "if self._ahead_ms is None:",
                "if True:",
            ),
        ),
        ("live-never-dead", "dead-told", "downbeats-once"),
        ("looks", "beats"),  # with messages, a node whose clock runs ahead keeps a seed from ending
    ),
    PlantedBug(
        "live-told-dead",
        "half a missed heartbeat makes a node dead",
        (
            Code(
                "vox_mesh.model.nodes.liveness:missed_ticks",
                "int(silent_ms / tick_ms - _TOLERANCE)",
                "int(20 * silent_ms / tick_ms)",
            ),
        ),
        ("live-never-dead",),
        ("writes", "looks"),
    ),
    PlantedBug(
        "downbeat-twice",
        "every beat is reported twice",
        (
            Code(
                "vox_mesh.rhythm.tempo.pulse:Pulse._beat",
                "listener.put(frame)",
                "listener.put(frame), listener.put(frame)",
            ),
        ),
        ("downbeats-once",),
        ("beats",),
    ),
    PlantedBug(
        "downbeat-swallowed",
        "beats missed while a process was paused are skipped, downbeats too",
        (
            Code(
                "vox_mesh.rhythm.tempo.pulse:Pulse._beat",
                "for beat in metronome.beats(context.timeline, now_ms):",
                "for beat in list(metronome.beats(context.timeline, now_ms))[-1:]:",
            ),
        ),
        ("downbeats-once",),
        ("beats",),
    ),
    PlantedBug(
        "entry-not-archived",
        "a segment of the archive lacks one of its entries",
        (
            Code(
                "vox_mesh.oplog.archive.log_archive:LogArchive._write",
                "writer.add, due)",
                "writer.add, [*due[:1], *due[2:]])",
            ),
        ),
        ("archive-verifies",),
        ("archiving", "oplog"),
        instrument=Instrument.FILE,
        faults=("kill",),
    ),
    PlantedBug(
        "segment-archived-twice",
        "two nodes that archive at the same time both record a segment",
        (Sql("oplog", "refuse_unless_last_segment", "WHERE ?3 IS NOT (", "WHERE ?3 = 0 AND ?3 IS NOT ("),),
        ("archive-verifies",),
        ("archiving", "oplog"),
        instrument=Instrument.FILE,
        faults=("kill",),
    ),
    PlantedBug(
        "deleted-beyond",
        "with archived entries, the next one is deleted, which no op names",
        (
            Code(
                "vox_mesh.runtime.archive.deletion:LogDeletion._delete",
                "min(begin + _BATCH - 1, last))",
                "min(begin + _BATCH - 1, last) + 1)",
            ),
        ),
        ("archive-verifies", "chains-whole"),
        ("archiving", "oplog"),
        instrument=Instrument.FILE,
        faults=("kill",),
    ),
    PlantedBug(
        "archive-believed",
        "the digest of an archived file is not compared with the one in the log",
        (
            Code(
                "vox_mesh.oplog.archive.segment_file:SegmentReader.check_file",
                "if digest != self._segment.sha256:",
                "if not digest:",
            ),
        ),
        ("test_the_archive_verifies_only_with_the_files_that_were_archived",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "archive-not-compared",
        "what the database has of an archived segment is not compared with the file",
        (
            Code(
                "vox_mesh.oplog.archive.archived_log:ArchivedLog._compare",
                "if differing:",
                "if differing is None:",
            ),
        ),
        ("test_the_archive_verifies_only_against_the_database_that_it_was_made_of",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "false-segment-believed",
        "a segment that the owner declared void still counts",
        (
            Code(
                "vox_mesh.oplog.archive.segment_ops:SegmentOps.read",
                "if entry.op_id in passed_over or not",
                "if not",
            ),
        ),
        ("test_false_segments_of_a_node_do_not_keep_the_owner_from_archiving",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "false-segment-built-upon",
        "the next segment follows the last recorded one, also if the archive does not have it",
        (
            Code(
                "vox_mesh.oplog.archive.log_archive:LogArchive._archive_next",
                "await self.false_segments.checked()",
                "await self._ops.read()",
            ),
        ),
        ("test_a_false_segment_recorded_while_the_log_is_verified_is_not_built_upon",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "lost-segment-unnoticed",
        "a pass of archiving does not notice that the archive has lost an older file",
        (
            Code(
                "vox_mesh.oplog.archive.false_segments:FalseSegments.first_missing",
                "for each in stored or rest if not",
                "for each in rest if not",
            ),
        ),
        ("test_a_pass_names_the_first_segment_that_the_archive_has_lost",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "deleted-although-lost",
        "archived entries are deleted while the archive lacks a file",
        (
            Code(
                "vox_mesh.runtime.archive.deletion:LogDeletion.run_once",
                "if missing is not None:",
                "if False:",
            ),
        ),
        ("test_nothing_is_deleted_while_the_archive_lacks_a_file",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "segment-voided-by-anyone",
        "any node can declare a segment void",
        (
            Code(
                "vox_mesh.oplog.archive.segment_ops:SegmentOps.read",
                "if await self._trusted_keys.is_of_owner(each)",
                "if await self._trusted_keys.is_authentic(each)",
            ),
        ),
        ("test_only_the_owner_declares_segments_void",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "voided-while-deleted",
        "a segment is declared void although its entries were let be deleted meanwhile",
        (Sql("oplog", "refuse_unless_last_deletion", "WHERE ?3 IS NOT (", "WHERE ?3 = 0 AND ?3 IS NOT ("),),
        ("test_a_segment_is_not_declared_void_whose_entries_are_deleted_meanwhile",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "deleted-while-voided",
        "entries are deleted although their segment was declared void meanwhile",
        (
            Code(
                "vox_mesh.runtime.archive.deletion:LogDeletion._record",
                "self._segments.unless_last(found.last_op),",
                "",
            ),
        ),
        ("test_nothing_is_deleted_of_a_segment_that_is_declared_void_meanwhile",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "archived-segment-voided",
        "a segment can be declared void that the archive has",
        (
            Code(
                "vox_mesh.oplog.archive.false_segments:FalseSegments.void",
                "if await self._is_valid(found[0]):",
                "if not found[0]:",
            ),
        ),
        ("test_a_segment_that_the_archive_has_is_not_declared_void",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "gap-believed",
        "a gap in a chain is believed that no op of the owner names",
        (
            Code(
                "vox_mesh.model.oplog.deletion:DeletedEntries.bridges",
                "if place == end:",
                "if place != end:",
            ),
        ),
        ("test_an_entry_that_was_not_let_be_deleted_is_missed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "deleted-unarchived",
        "entries are deleted without a look at the archive",
        (
            Code(
                "vox_mesh.oplog.archive.archived_log:ArchivedLog.check",
                "if self.faults:",
                "if self.faults is None:",
            ),
        ),
        ("test_nothing_is_deleted_that_the_archive_does_not_have",),
        instrument=Instrument.ATTACKS,
    ),
)
