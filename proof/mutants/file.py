"""Bugs in the database file of a mesh: its writes, its log, and the commits of others."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

FILE_PLANTS: Final = (
    PlantedBug(
        "log-left-behind",
        "two that look for commits at once open a connection each, of which one stays open",
        (
            Code(
                "vox_mesh.store.engines.file:FileEngine._watch",
                "if self._watching is None:",
                "if self._path:",
            ),
        ),
        ("test_closing_leaves_no_log_though_two_have_just_looked_for_commits_of_others",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "log-never-emptied",
        "while writes are quick, none of them checkpoints the write-ahead log",
        (
            Code(
                "vox_mesh.store.engines.writing:WritePace.is_fast",
                " or self._fast_in_row % _TRIAL == 0",
                "",
            ),
        ),
        ("test_the_log_of_the_file_is_checkpointed_while_writes_run_in_the_loop",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "loop-waits-for-lock",
        "a quick write waits in the event loop while another program has locked the file",
        (
            Code(
                "vox_mesh.store.engines.writing:WritingConnection.walk_in_loop",
                "self._set_up(0, 0)",
                "self._set_up(_BUSY_TIMEOUT_MS, 0)",
            ),
        ),
        ("test_it_waits_for_locks_in_the_thread_but_not_in_the_loop",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "bell-not-rung",
        "a commit to a file does not wake the processes that listen for it",
        (
            Code(
                "vox_mesh.store.engines.file:Turn._ring",
                "os.pread(self._descriptor, 1, 0)",
                "os.fstat(self._descriptor)",
            ),
        ),
        ("test_a_commit_is_heard_by_the_bell_alone",),
        instrument=Instrument.STORE,
    ),
    PlantedBug(
        "deaf-after-burst",
        "after a burst of its own commits, a process does not hear of those of others",
        (
            Code(
                "vox_mesh.store.watch.listeners:WalListener._unmute_if_over",
                "events.release()",
                "events.forget()",
            ),
        ),
        ("test_a_commit_of_another_is_heard_during_a_burst_of_own_ones_and_after_it",),
        instrument=Instrument.STORE,
    ),
)
