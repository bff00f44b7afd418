"""Subjects of retention: what is pruned by a policy, and what bounds every other table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

DAY_MS: Final = 86_400_000


class Subject(StrEnum):
    """What a policy is about."""

    JOBS = "jobs"
    LOGS = "logs"
    NOTES = "notes"
    ARTIFACTS = "artifacts"
    MESSAGES = "messages"
    DEAD_LETTERS = "dead-letters"
    INBOXES = "inboxes"
    CONFLICTS = "conflicts"
    NODES = "nodes"


class SubjectRule(NamedTuple):
    """What the policies of a subject may say, and what holds without one."""

    what: str
    age_ms: int
    """By default, rows of this age are pruned."""
    tables: tuple[str, ...]
    kind_is: str | None = None
    """What kinds of it are; `None`: it has none."""
    can_count: bool = True
    """Whether a policy may bound the number of rows."""
    can_weigh: bool = False
    """Whether a policy may bound their bytes."""


RULES: Final[Mapping[Subject, SubjectRule]] = {
    Subject.JOBS: SubjectRule(
        "ended jobs", 30 * DAY_MS, ("jobs", "job_predecessors", "job_steps", "phrase_begins"), "kind of job"
    ),
    Subject.LOGS: SubjectRule(
        "output and logs of ended jobs", 14 * DAY_MS, ("job_logs",), "kind of job", can_count=False
    ),
    Subject.NOTES: SubjectRule(
        "progress and checkpoints of ended jobs", 14 * DAY_MS, ("job_notes",), "kind of job", can_count=False
    ),
    Subject.ARTIFACTS: SubjectRule(
        "artifacts that no job has any more",
        30 * DAY_MS,
        ("job_artifacts", "artifact_removals"),
        "type of artifact",
        can_weigh=True,
    ),
    Subject.MESSAGES: SubjectRule(
        "acknowledged and expired messages", DAY_MS, ("a2a_messages",), "type of message"
    ),
    Subject.DEAD_LETTERS: SubjectRule("dead letters", 30 * DAY_MS, ("a2a_messages",), "type of message"),
    Subject.INBOXES: SubjectRule(
        "inboxes that are not received from", 90 * DAY_MS, ("a2a_inboxes",), can_count=False
    ),
    Subject.CONFLICTS: SubjectRule("resolved conflicts", 90 * DAY_MS, ("occ_conflicts",), "table"),
    Subject.NODES: SubjectRule(
        "nodes that have left or died",
        30 * DAY_MS,
        ("mesh_heartbeats", "node_vitals", "node_addresses", "clock_witnesses", "beat_pulses"),
        can_count=False,
    ),
}
"""The rules by subject."""

OTHERWISE: Final[Mapping[str, str]] = {
    "mesh_schema": "a row for each migration",
    "script_results": "pruned by its writer after a day, of a lost one after 90 days",
    "script_answers": "pruned with its key",
    "database_clock": "one row",
    "refusals": "accepts no rows",
    "lock_generations": "one row for each mesh",
    "distributed_locks": "removed on release, or swept after expiry",
    "lock_shares": "removed on release, or swept after expiry",
    "lock_waiters": "removed when served, or swept when the waiter is silent",
    "lock_patterns": "swept when no lock uses the pattern",
    "lock_overlaps": "swept with its pattern",
    "lock_sessions": "removed with its lock",
    "node_incarnations": "one row for each node name: fences its former processes",
    "store_epochs": "the newest 1,000",
    "agent_presence": "pruned after 30 days",
    "node_versions": "one row for each node name",
    "node_keys": "one row for each key: the op log is verified by them",
    "node_key_requests": "removed when decided, or after 90 days",
    "mesh_owner": "one row",
    "agent_oplog": "archived, and deleted after VOX_ARCHIVE_KEEP",
    "admitted_agents": "one row for each admitted agent",
    "grants": "removed when revoked, or a day after their end",
    "grant_usage": "removed when it does not count any more, or with its grant",
    "grant_reservations": "removed when settled, or with its grant",
    "admitted_nodes": "one row for each admitted node",
    "approvals": "pruned 7 days after they have expired",
    "agent_tokens": "removed when revoked or expired",
    "deferred_ops": "removed when applied; a dropped one stays: it says what its entry in the op log is",
    "a2a_receivers": "pruned an hour after they were last seen",
    "scope_arrivals": "pruned by the node that forwards messages between scopes",
    "job_takes": "removed with its claim",
    "job_questions": "removed when the job has ended",
    "job_cleanups": "removed when the job has ended, and all is cleaned up",
    "job_waits": "removed when the job is woken or has ended",
    "mcp_tasks": "pruned 7 days after the job has ended",
    "job_counts": "a row for each kind and state that has jobs",
    "job_kinds": "a row for each kind with rules",
    "job_claims": "removed when its period is over",
    "job_drains": "a row for each drained node",
    "job_crons": "a row for each cron",
    "job_rules": "a row for each rule",
    "memories": "of the agents, who delete what they do not need",
    "agent_sessions": "of the agents, who delete what they do not need",
    "conversations": "removed when they have expired: 90 days after the last write, or as their program says",
    "graph_checkpoints": "removed with its conversation",
    "graph_writes": "removed with its conversation",
    "session_items": "removed with its conversation",
    "retention_policies": "at most 1,000",
    "retention_progress": "a row for each subject",
    "size_samples": "pruned after a year",
    "tempo_policies": "pruned after 400 days, except the one in effect",
    "tempo_incidents": "one row",
    "status_claims": "pruned after they were reported",
    "status_signatures": "pruned with the claims",
    "bar_reports": "pruned after 90 days",
    "help_threads": "pruned 90 days after their end",
    "phrase_ends": "pruned after 400 days",
    "job_tallies": "pruned after 400 days",
    "phrase_checkpoints": "pruned after 90 days",
    "budgets": "a row for each budget",
    "spend_limits": "removed with its budget",
    "spend_reservations": "removed when its attempt is over",
    "token_spend": "pruned after 400 days",
}
"""What bounds the tables that no policy is about."""

MIN_AGE_MS: Final = 1_000
MAX_AGE_MS: Final = 36_500 * DAY_MS
MAX_ROWS: Final = 10**12
MAX_BYTES: Final = 10**15
