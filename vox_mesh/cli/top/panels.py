"""The panels: parts of the overview as text in columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vox_mesh.cli.support.output import printable
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.nodes.agent_state import AgentState
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.views.agents.agents import AgentView, some_of
from vox_mesh.views.nodes import NodeView
from vox_mesh.views.overview import (
    ApprovalLine,
    ConflictLine,
    JobLine,
    KindLine,
    LockLine,
    MessageLine,
    Overview,
    WaiterLine,
)
from vox_mesh.views.rhythm import TaskStatusView

_FAR_OFF_MS: Final = 1_000
_SHORT_ID: Final = 8

STYLES: Final[dict[str, str]] = {
    **dict.fromkeys((NodeState.ALIVE, JobState.RUNNING, JobState.SUCCEEDED), "green"),
    **dict.fromkeys((NodeState.WARN, NodeState.ALERT, JobState.CLAIMED, "overdue"), "yellow"),
    **dict.fromkeys((NodeState.CRITICAL, NodeState.DEAD, JobState.FAILED), "red"),
    **dict.fromkeys((NodeState.LEFT, JobState.ABORTED, "claimed"), "bright_black"),
}
"""The colours of states, from the 16 that every terminal has; other states have none."""


class Column(NamedTuple):
    """A column: its heading and its minimum width."""

    name: str
    least: int
    is_number: bool = False


class PanelLine(NamedTuple):
    """A row of a panel: its unique key, its item, and its cells, each with a style."""

    key: str
    item: Any
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Panel:
    """A part of the view."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: Callable[[Overview], Sequence[PanelLine]]
    summary: Callable[[Overview], str]


def text_of(value: object) -> str:
    """Return untrusted text on one line without control characters."""
    return "" if value is None else printable(" ".join(str(value).split()))


def span(milliseconds: float | None) -> str:
    """Return a duration in short form."""
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}" if seconds < 10 * size else f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"


def _line(key: str, item: Any, *cells: object) -> PanelLine:
    """Return a row; a cell is a value, or a value and its style."""
    pairs = (cell if isinstance(cell, tuple) else (cell, "") for cell in cells)
    return PanelLine(key, item, tuple((text_of(value), style) for value, style in pairs))


def _state(state: str) -> tuple[str, str]:
    return state, STYLES.get(state, "")


def _counts(*parts: tuple[int, str]) -> str:
    return " · ".join(f"{count} {what}" for count, what in parts if count) or "none"


# --- nodes ---------------------------------------------------------------------------------------


def _node(node: NodeView, overview: Overview) -> PanelLine:
    is_draining = node.node_id in overview.draining
    distance = node.clock_distance_ms
    faulty = node.faults and node.state not in (NodeState.DEAD, NodeState.LEFT)
    return _line(
        node.node_id,
        node,
        node.node_id,
        _state(node.state),
        ("draining", "yellow") if is_draining else node.role,
        f"{node.load}/{node.capacity}",
        span(node.age_ms),
        (f"{distance:+}ms", "red" if abs(distance) >= _FAR_OFF_MS else ""),
        span(node.replica_lag_ms),
        ("; ".join(node.faults), "red")
        if faulty
        else node.activity or ", ".join(node.kinds) or node.agent_id,
    )


def _nodes_summary(overview: Overview) -> str:
    states = [node.state for node in overview.nodes]
    dead, left = states.count(NodeState.DEAD), states.count(NodeState.LEFT)
    faulty = sum(
        bool(node.faults) and node.state not in (NodeState.DEAD, NodeState.LEFT) for node in overview.nodes
    )
    return _counts((overview.live, "live"), (faulty, "not ready"), (dead, "dead"), (left, "left"))


# --- jobs ----------------------------------------------------------------------------------------


def _kind(kind: KindLine) -> PanelLine:
    counts = [
        (kind.jobs[state], STYLES.get(state, "")) if kind.jobs.get(state) else ("·", "bright_black")
        for state in JobState
    ]
    oldest = ("paused", "yellow") if kind.is_paused else span(kind.oldest_ms)
    return _line(kind.kind, kind, kind.kind, *counts, oldest)


def _kinds_summary(overview: Overview) -> str:
    return _counts(*((overview.jobs_in(state), state.value) for state in JobState))


def _job(job: JobLine) -> PanelLine:
    return _line(
        job.job_id,
        job,
        job.job_id[:_SHORT_ID],
        job.kind,
        _state(job.state),
        f"{job.attempts}/{job.max_attempts}",
        span(job.since_ms),
        job.claimer,
        _job_note(job),
    )


def _job_note(job: JobLine) -> str:
    """Return a note on a job: its progress, what it waits for, or why it failed."""
    if job.state in (JobState.RUNNING, JobState.CLAIMED):
        far = "" if job.progress is None else f"{job.progress:.0%} "
        return f"{far}{job.message or ''}" or f"lease {span(job.due_ms)}"
    if job.state == JobState.PENDING:
        if job.waits:
            return f"waits for {job.waits} {'other' if job.waits == 1 else 'others'}"
        if job.due_ms is not None:
            return f"in {span(job.due_ms)}{f': {job.reason}' if job.reason else ''}"
        return job.reason or ""
    return job.reason or ("" if job.exit_code is None else f"exit code {job.exit_code}")


def _jobs_summary(overview: Overview) -> str:
    running = overview.jobs_in(JobState.RUNNING) + overview.jobs_in(JobState.CLAIMED)
    return _counts(
        (running, "running"),
        (overview.jobs_in(JobState.FAILED), "failed"),
        (overview.jobs_in(JobState.PENDING), "pending"),
    )


# --- locks ---------------------------------------------------------------------------------------


def _lock(lock: LockLine) -> PanelLine:
    waiting = len(lock.waiters)
    return _line(
        f"{lock.lock_key}\n{lock.fence_token}",
        lock,
        lock.lock_key,
        ("shared", "cyan") if lock.is_shared else "excl",
        span(lock.age_ms),
        span(lock.left_ms),
        (waiting or "", "yellow"),
        f"{lock.holder_agent} @ {lock.holder_node}",
    )


def _waiter(waiter: WaiterLine) -> PanelLine:
    """Return the row of a waiter whose key is blocked by an overlapping lock, not by its own holder."""
    key = f"{waiter.lock_key}\n{waiter.node_id}\n{waiter.agent_id}"
    who = f"{waiter.agent_id} @ {waiter.node_id}"
    return _line(key, waiter, waiter.lock_key, ("waits", "yellow"), span(waiter.since_ms), "", "", who)


def _locks(overview: Overview) -> list[PanelLine]:
    return [*map(_lock, overview.locks), *map(_waiter, overview.waiters)]


def _locks_summary(overview: Overview) -> str:
    waiting = len(overview.waiters) + len({who for lock in overview.locks for who in lock.waiters})
    return _counts((len(overview.locks), "held"), (waiting, "waiting"))


# --- messages ------------------------------------------------------------------------------------


def _message(message: MessageLine) -> PanelLine:
    return _line(
        message.message_uuid,
        message,
        (message.standing, "red" if message.standing == "dead" else STYLES.get(message.standing, "")),
        message.sender_agent,
        message.receiver_agent,
        message.msg_type,
        f"{message.attempts}/{message.max_attempts}",
        span(message.age_ms),
        message.reason,
    )


def _messages_summary(overview: Overview) -> str:
    mail = overview.mail
    return _counts(
        (mail.unread, "unread"), (mail.claimed, "claimed"), (mail.overdue, "overdue"), (mail.dead, "dead")
    )


# --- conflicts -----------------------------------------------------------------------------------


def _conflict(conflict: ConflictLine) -> PanelLine:
    return _line(
        conflict.conflict_id,
        conflict,
        conflict.conflict_id,
        conflict.table_name,
        conflict.row_key,
        conflict.left_by,
        conflict.right_by,
        conflict.deferred_to,
        span(conflict.age_ms),
    )


# --- approvals -----------------------------------------------------------------------------------


def _approval(approval: ApprovalLine) -> PanelLine:
    return _line(
        approval.approval_id,
        approval,
        approval.agent,
        approval.operation,
        "; ".join(approval.asks_for),
        span(approval.age_ms),
        span(approval.left_ms),
        approval.approval_id,
    )


# --- agents --------------------------------------------------------------------------------------

_AGENT_STYLES: Final = {
    AgentState.ALIVE: "green",
    AgentState.QUIET: "yellow",
    AgentState.GONE: "bright_black",
}


def _agent(agent: AgentView) -> PanelLine:
    return _line(
        agent.agent_id,
        agent,
        agent.agent_id,
        (agent.state, _AGENT_STYLES[AgentState(agent.state)]),
        span(agent.age_ms),
        (agent.unread or "", "yellow"),
        f"{agent.bu:g}" if agent.bu else "",
        some_of(agent.locks, agent.lock_count),
        (some_of(agent.waits_for, agent.waits_for_count), "yellow"),
        agent.works_on,
        agent.node_id,
    )


def _agents_summary(overview: Overview) -> str:
    states = [agent.state for agent in overview.agents]
    return _counts(*((states.count(state), state.value) for state in AgentState))


# --- status --------------------------------------------------------------------------------------

_STATUS_STYLES: Final = {
    ClaimState.WAITING: "yellow",
    ClaimState.FAILED: "red",
    ClaimState.DONE: "bright_black",
}


def _status(status: TaskStatusView, now_ms: int) -> PanelLine:
    return _line(
        f"{status.agent_id}\n{status.task_id}",
        status,
        status.agent_id,
        status.task_id,
        status.phase,
        (status.state, _STATUS_STYLES.get(ClaimState(status.state), "green")),
        span(max(0, now_ms - status.since_ms)),
        "" if status.progress is None else f"{status.progress:.0%}",
        (some_of(status.waits_on, len(status.waits_on)), "yellow"),
        some_of(status.wait_for, len(status.wait_for)) or status.notes,
    )


def _status_summary(overview: Overview) -> str:
    states = [status.state for status in overview.status]
    return _counts(*((states.count(state), state.value) for state in ClaimState))


# --- all of them ---------------------------------------------------------------------------------

NODES: Final = Panel(
    "nodes",
    "Nodes",
    (
        *(Column("node", 12), Column("state", 8), Column("role", 8), Column("load", 4, is_number=True)),
        *(Column("seen", 5, is_number=True), Column("clock", 6, is_number=True)),
        *(Column("lag", 4, is_number=True), Column("works on", 10)),
    ),
    lambda overview: [_node(each, overview) for each in overview.nodes],
    _nodes_summary,
)
KINDS: Final = Panel(
    "kinds",
    "Jobs by state",
    (
        Column("kind", 12),
        *(Column(state.value, len(state.value), is_number=True) for state in JobState),
        Column("oldest", 6, is_number=True),
    ),
    lambda overview: [_kind(each) for each in overview.kinds],
    _kinds_summary,
)
JOBS: Final = Panel(
    "jobs",
    "Jobs",
    (
        *(Column("job", _SHORT_ID), Column("kind", 10), Column("state", 7)),
        *(Column("tries", 4, is_number=True), Column("for", 5, is_number=True)),
        *(Column("node", 8), Column("", 10)),
    ),
    lambda overview: [_job(each) for each in overview.jobs],
    _jobs_summary,
)
LOCKS: Final = Panel(
    "locks",
    "Locks",
    (
        *(Column("key", 16), Column("mode", 4)),
        *(Column("held", 5, is_number=True), Column("left", 5, is_number=True)),
        *(Column("wait", 4, is_number=True), Column("holder", 12)),
    ),
    _locks,
    _locks_summary,
)
MESSAGES: Final = Panel(
    "messages",
    "Messages",
    (
        *(Column("state", 7), Column("from", 8), Column("to", 8), Column("type", 6)),
        *(Column("tries", 4, is_number=True), Column("age", 5, is_number=True), Column("reason", 8)),
    ),
    lambda overview: [_message(each) for each in overview.messages],
    _messages_summary,
)
CONFLICTS: Final = Panel(
    "conflicts",
    "Conflicts",
    (
        *(Column("id", 10), Column("table", 8), Column("row", 10), Column("left by", 7)),
        *(Column("right by", 8), Column("left to", 7), Column("age", 5, is_number=True)),
    ),
    lambda overview: [_conflict(each) for each in overview.conflicts],
    lambda overview: _counts((overview.open_conflicts, "open")),
)
AGENTS: Final = Panel(
    "agents",
    "Agents",
    (
        *(Column("agent", 10), Column("state", 5), Column("seen", 5, is_number=True)),
        *(Column("unread", 6, is_number=True), Column("cost", 4, is_number=True), Column("holds", 10)),
        *(Column("waits for", 9), Column("works on", 8), Column("node", 8)),
    ),
    lambda overview: [_agent(each) for each in overview.agents],
    _agents_summary,
)
STATUS: Final = Panel(
    "status",
    "Status",
    (
        *(Column("agent", 10), Column("task", 10), Column("phase", 6), Column("state", 9)),
        *(Column("for", 5, is_number=True), Column("done", 4, is_number=True)),
        *(Column("waits on", 8), Column("", 10)),
    ),
    lambda overview: [_status(each, overview.now_ms) for each in overview.status],
    _status_summary,
)
APPROVALS: Final = Panel(
    "approvals",
    "Approvals",
    (
        *(Column("agent", 8), Column("operation", 10), Column("asks for", 12)),
        *(Column("age", 5, is_number=True), Column("left", 5, is_number=True), Column("id", 10)),
    ),
    lambda overview: [_approval(each) for each in overview.approvals],
    lambda overview: _counts((overview.open_approvals, "waiting")),
)
PANELS: Final = (NODES, KINDS, JOBS, LOCKS, MESSAGES, CONFLICTS, AGENTS, STATUS, APPROVALS)
