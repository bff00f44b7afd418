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
    "script_results": "pruned when its key can't be sent again",
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
    "node_key_requests": "one row for each node name, removed when decided",
    "mesh_owner": "one row",
    "agent_oplog": "archived, and deleted after VOX_ARCHIVE_KEEP",
    "admitted_agents": "one row for each admitted agent",
    "grants": "removed when revoked or expired",
    "grant_usage": "removed when it does not count any more",
    "grant_reservations": "removed when settled",
    "admitted_nodes": "one row for each admitted node",
    "approvals": "pruned after they have expired",
    "agent_tokens": "removed when revoked or expired",
    "deferred_ops": "removed when applied; a dropped one stays with its entry in the op log",
    "a2a_receivers": "pruned an hour after they were last seen",
    "job_takes": "removed with its claim",
    "job_questions": "removed when the job has ended",
    "mcp_tasks": "pruned 7 days after the job has ended",
    "job_counts": "a row for each kind and state",
    "job_kinds": "a row for each kind with rules",
    "job_claims": "removed when its period is over",
    "job_drains": "a row for each drained node",
    "job_crons": "a row for each cron",
    "job_rules": "a row for each rule",
    "memories": "of the agents, who delete what they do not need",
    "agent_sessions": "of the agents, who delete what they do not need",
    "job_artifacts": "kept: one row for each content",
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
