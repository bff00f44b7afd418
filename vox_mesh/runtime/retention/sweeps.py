"""All sweeps, in the order of a pass."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.retention.subjects import Subject
from vox_mesh.runtime.retention.artifact_sweep import ArtifactSweep
from vox_mesh.runtime.retention.sweep import Sweep

_MAX_PIECES: Final = 500
"""The pieces of logs that are pruned at once."""

SWEEPS: Final = (
    Sweep(Subject.LOGS, "logs", ("prune_logs",), 20, limit=_MAX_PIECES),
    Sweep(Subject.NOTES, "notes", ("prune_notes",), 100),
    Sweep(
        Subject.JOBS,
        "jobs",
        (
            *(
                "uncount_jobs",
                "prune_predecessors",
                "prune_notes_of_jobs",
                "prune_steps_of_jobs",
                "prune_logs_of_jobs",
            ),
            *("prune_phrases_of_jobs", "prune_jobs"),
        ),
        50,
        last="jobs_last",
        refuses="refuse_needed_jobs",
        is_logged=True,
    ),
    ArtifactSweep(
        Subject.ARTIFACTS,
        "artifacts",
        ("ask_for_removal", "prune_artifacts"),
        50,
        last="artifacts_last",
        last_by_bytes="artifacts_last_by_bytes",
        upkeep=("date_artifacts", "prune_removals"),
    ),
    Sweep(
        Subject.MESSAGES,
        "messages",
        ("prune_messages",),
        200,
        last="messages_last",
        states=("acked", "expired"),
    ),
    Sweep(
        Subject.DEAD_LETTERS,
        "messages",
        ("prune_messages",),
        200,
        last="messages_last",
        states=("dead",),
    ),
    Sweep(Subject.INBOXES, "inboxes", ("prune_inboxes",), 100),
    Sweep(Subject.CONFLICTS, "conflicts", ("prune_conflicts",), 100, last="conflicts_last"),
    Sweep(
        Subject.NODES,
        "nodes",
        (
            *("prune_nodes", "prune_vitals", "prune_addresses", "prune_witnesses", "prune_pulses"),
            "prune_agents",
        ),
        20,
    ),
)
"""Jobs go before the artifacts that only they need."""

UPKEEP: Final = (
    *("prune_keys", "prune_answers", "prune_tokens", "prune_approvals", "prune_grants", "prune_usage"),
    *("prune_reservations", "prune_claims", "prune_counts", "prune_key_requests"),
    *("prune_graph_writes", "prune_graph_checkpoints", "prune_session_items", "prune_conversations"),
)
"""The statements, after the sweeps, that prune rows without a policy."""
