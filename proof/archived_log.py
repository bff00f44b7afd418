"""The whole log of a run: what the database has at the end, and what was archived and then deleted."""

from __future__ import annotations

import orjson

from proof.final_state import Row, final_rows
from proof.history import Data, History
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import DELETE, DeletedEntries, Deletion
from vox_mesh.model.oplog.segment import ARCHIVE


def deleted_entries(history: History) -> DeletedEntries:
    """Return which entries the accepted ops of the log let be deleted."""
    rows = (row for row in final_rows(history, "agent_oplog") if row["kind"] == DELETE and row["accepted"])
    return DeletedEntries(Deletion.read(LogEntry(**row)) for row in rows)


def recorded_segments(history: History) -> list[Data]:
    """Return what the ops of the log record of the files in the archive, in their order."""
    rows = final_rows(history, "agent_oplog")
    return [orjson.loads(row["payload"]) for row in rows if row["kind"] == ARCHIVE and row["accepted"]]


def log_rows(history: History) -> list[Row]:
    """Return the rows of the log, by id, with archived ones that may be deleted.

    Files that no op records do not count: they may hold entries that were lost in a rollback.
    """
    found = final_rows(history, "agent_oplog")
    if archived := history.notes("final.archived"):
        deleted, recorded = deleted_entries(history), _recorded_entries(history)
        rows = [note.data["row"] for note in archived if note.data["row"]["op_id"] in recorded]
        missing = {row["id"]: row for row in rows if deleted.has(row["node_id"], row["seq"])}
        found += missing.values()
    return sorted(found, key=lambda row: row["id"])


def _recorded_entries(history: History) -> set[str]:
    """Return the op ids of the entries in all recorded files."""
    files = {segment["sha256"] for segment in recorded_segments(history)}
    notes = (note.data for note in history.notes("final.segment") if note.data["sha256"] in files)
    return {op_id for segment in notes for _, op_id, *_ in segment["entries"]}
