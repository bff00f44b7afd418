"""The whole log of a run: what the database has at the end, and what was archived and then deleted."""

from __future__ import annotations

from proof.final_state import Row, final_rows
from proof.history import History
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import DELETE, DeletedEntries, Deletion


def deleted_entries(history: History) -> DeletedEntries:
    """Return which entries the accepted ops of the log let be deleted."""
    rows = (row for row in final_rows(history, "agent_oplog") if row["kind"] == DELETE and row["accepted"])
    return DeletedEntries(Deletion.read(LogEntry(**row)) for row in rows)


def log_rows(history: History) -> list[Row]:
    """Return the rows of the log, by id, with archived ones that may be deleted."""
    found = final_rows(history, "agent_oplog")
    if archived := history.notes("final.archived"):
        deleted, rows = deleted_entries(history), (note.data["row"] for note in archived)
        missing = {row["id"]: row for row in rows if deleted.has(row["node_id"], row["seq"])}
        found += missing.values()
    return sorted(found, key=lambda row: row["id"])
