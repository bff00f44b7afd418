"""The archive of the log: its files are the recorded ones, and hold what the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from proof.archived_log import deleted_entries, recorded_segments
from proof.checkers.oplog import problems_found
from proof.final_state import final_rows
from proof.history import Data, History
from proof.verdicts import Check


def archive_verifies(history: History) -> Iterator[str | int]:
    """Compare the files with the ops that record them, and with the log; and no node has found a fault.

    Files that no op records are left of passes that were killed, or lost in a rollback. The log may lack what
    its ops let be deleted.
    """
    log = {row["id"]: (row["id"], row["op_id"], row["hash"]) for row in final_rows(history, "agent_oplog")}
    deleted = deleted_entries(history)
    files = {note.data["sha256"]: note.data["entries"] for note in history.notes("final.segment")}
    recorded = recorded_segments(history)
    yield from _in_sequence(recorded)
    for segment in recorded:
        yield 1
        what = f"segment {segment['number']}"
        stored = files.get(segment["sha256"])
        if stored is None:
            yield f"{what} is recorded, and the archive has no such file"
            continue
        expected = [log[each] for each in sorted(log) if segment["after_id"] < each <= segment["last_id"]]
        left = [tuple(each[:3]) for each in stored if each[0] in log or not deleted.has(*each[3:])]
        if left != expected:
            yield f"{what} has {len(left)} entries, which are not the {len(expected)} of the log"
    yield from problems_found(history, "archive.verify")


def _in_sequence(recorded: list[Data]) -> Iterator[str]:
    begin: Data = {"number": 0, "last_id": 0}
    for before, segment in pairwise((begin, *recorded)):
        if (segment["number"], segment["after_id"]) != (before["number"] + 1, before["last_id"]):
            yield f"segment {segment['number']} is recorded after segment {before['number']}"


ARCHIVE_CHECKS: Final = (
    Check(
        "archive-verifies",
        "the archive has each recorded segment of the log, with all of its entries, once",
        archive_verifies,
    ),
)
