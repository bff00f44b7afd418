"""Stuck agents: alive, but waiting in a cycle or for long, or with a job that makes no progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.nodes.wait_cycles import wait_cycles
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.rhythm.task_status import TaskStatus
from vox_mesh.views.live.item import AttentionItem, AttentionKind, ScreenLink, Urgency

LONG_WAIT_MS: Final = 10 * 60_000
"""How long an agent may wait for a lock or for another agent before it counts as stuck."""

NO_PROGRESS_MS: Final = 30 * 60_000
"""How long a running job may give no sign: no start of its attempt, no progress, no line of its log."""


class LockWait(NamedTuple):
    """An agent that waits for a lock of another."""

    agent: str
    node_id: str
    lock_key: str
    since: str
    holder: str
    held_key: str

    @property
    def since_ms(self) -> int:
        """Since when it waits."""
        return milliseconds_at(self.since)


class SilentJob(NamedTuple):
    """A running job that gives no sign."""

    job_id: str
    kind: str
    agent: str
    node_id: str
    last_sign_ms: int


def lock_wait(values: Sequence[Any]) -> LockWait:
    """Return the wait of a row."""
    return LockWait._make(values)


def silent_job(values: Sequence[Any]) -> SilentJob:
    """Return the job of a row."""
    return SilentJob._make(values)


def stuck_agents(
    waits: Sequence[LockWait], silent: Sequence[SilentJob], tasks: Iterable[TaskStatus], now_ms: int
) -> list[AttentionItem]:
    """Return an item for each cycle, and one for each other agent that is stuck: for its worst reason."""
    waiting = [each for each in tasks if each.state is ClaimState.WAITING]
    found = list(_cycles(waits, waiting))
    stuck = {agent for each in found for agent in each.more["agents"]}
    for each in (*_long_waits(waits, now_ms), *_long_tasks(waiting, now_ms), *map(_without_progress, silent)):
        if each.id not in stuck:
            stuck.add(each.id)
            found.append(each)
    return found


def _cycles(waits: Iterable[LockWait], waiting: Iterable[TaskStatus]) -> Iterator[AttentionItem]:
    edges: dict[str, set[str]] = {}
    since: dict[str, int] = {}
    keys: dict[str, list[str]] = {}
    for wait in waits:
        edges.setdefault(wait.agent, set()).add(wait.holder)
        since[wait.agent] = max(since.get(wait.agent, 0), wait.since_ms)
        keys.setdefault(wait.agent, []).append(wait.held_key)
    for task in waiting:
        edges.setdefault(task.agent_id, set()).update(task.waits_on)
        since[task.agent_id] = max(since.get(task.agent_id, 0), task.since_ms)
    for agents in wait_cycles(edges):
        names = ", ".join(agents)
        locks = sorted({key for agent in agents for key in keys.get(agent, ())})
        yield AttentionItem(
            kind=AttentionKind.STUCK_AGENT,
            id=" ".join(agents),
            title=f"{names} wait for each other",
            detail=f"locks: {', '.join(locks)}" if locks else "",
            since_ms=max(since[agent] for agent in agents),  # the last of them has closed the cycle
            urgency=Urgency.NOW,
            link=ScreenLink("agent", agents[0]),
            more={"why": "cycle", "agents": list(agents), "lock_keys": locks},
        )


def _long_waits(waits: Iterable[LockWait], now_ms: int) -> Iterator[AttentionItem]:
    for wait in waits:
        if wait.since_ms <= now_ms - LONG_WAIT_MS:
            yield AttentionItem(
                kind=AttentionKind.STUCK_AGENT,
                id=wait.agent,
                title=f"{wait.agent} waits long for {wait.lock_key}",
                detail=f"{wait.held_key} is held by {wait.holder}",
                since_ms=wait.since_ms,
                urgency=Urgency.SOON,
                link=ScreenLink("agent", wait.agent),
                more={
                    "why": "lock",
                    "agents": [wait.agent],
                    "node_id": wait.node_id,
                    "lock_keys": [wait.held_key],
                    "holder_agent": wait.holder,
                },
            )


def _long_tasks(waiting: Iterable[TaskStatus], now_ms: int) -> Iterator[AttentionItem]:
    for task in waiting:
        if task.since_ms <= now_ms - LONG_WAIT_MS:
            awaited = ", ".join(task.waits_on or task.wait_for)
            yield AttentionItem(
                kind=AttentionKind.STUCK_AGENT,
                id=task.agent_id,
                title=f"{task.agent_id} waits long in task {task.task_id}",
                detail=f"for {awaited}" if awaited else task.notes,
                since_ms=task.since_ms,
                urgency=Urgency.SOON,
                link=ScreenLink("agent", task.agent_id),
                more={
                    "why": "task",
                    "agents": [task.agent_id],
                    "node_id": task.node_id,
                    "task_id": task.task_id,
                    "wait_for": list(task.wait_for),
                },
            )


def _without_progress(job: SilentJob) -> AttentionItem:
    return AttentionItem(
        kind=AttentionKind.STUCK_AGENT,
        id=job.agent,
        title=f"{job.agent} makes no progress with job {job.kind}",
        detail="no progress and no output since then",
        since_ms=job.last_sign_ms,
        urgency=Urgency.SOON,
        link=ScreenLink("job", job.job_id),
        more={
            "why": "job",
            "agents": [job.agent],
            "node_id": job.node_id,
            "job_id": job.job_id,
            "job_kind": job.kind,
        },
    )
