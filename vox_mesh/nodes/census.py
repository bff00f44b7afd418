"""The census: counts of everything in the mesh, by one query."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.base.histogram import OTHER
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.nodes.liveness import NodeState, missed_ticks, state_of
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

MAX_MESSAGES: Final = 100_000
"""The maximum number of messages that are counted."""

MAX_READY: Final = 10_000
"""The maximum number of ready jobs per kind that are counted."""

_SQL: Final = named("census")


class CensusNode(NamedTuple):
    """A node that has not left."""

    node_id: str
    silent_s: float
    missed_ticks: int
    state: NodeState


class CensusPruning(NamedTuple):
    """The rows that were pruned, the ones still needed, and the seconds since a pass was complete."""

    pruned: int
    needed: int
    age_s: float | None


class Census(NamedTuple):
    """The counts of everything in the mesh."""

    jobs: dict[str, dict[str, int]]
    """By kind and state; all but the most frequent kinds are counted together as `other`."""
    jobs_ready: dict[str, int]
    """Jobs that could be claimed now, by kind: neither delayed nor waiting for others. Zero: no entry."""
    jobs_suspended: dict[str, int]
    """Jobs that wait without a worker, by kind. Zero: no entry."""
    nodes: list[CensusNode]
    """The nodes that have not left, the most recently seen first."""
    nodes_left: int
    locks_held: int
    lock_waiters: int
    messages_unacked: int
    messages_overdue: int
    messages_dead: int
    conflicts_open: int
    pruning: dict[str, CensusPruning]
    """How far pruning is, by subject; empty: the whole of it."""
    last_report: str | None
    """On the last bar with anything to report; a JSON document."""
    budgets: dict[str, float]
    """The limited budgets, by the fraction that is spent."""


async def take_census(store: Store, clock: MeshClock, *, kinds: int, budgets: int, timeout: float) -> Census:
    """Count everything in the mesh; `kinds` kinds of job and `budgets` budgets are listed by name.

    The replica answers if there is one; otherwise it takes one request.
    """
    now_ms = clock.now_ms
    values = (*store.mesh_id, now_ms, kinds, MAX_MESSAGES, iso_of(now_ms), MAX_READY, budgets)
    rows = await store.read(_SQL["take"], values, timeout=timeout)
    jobs, jobs_ready, suspended, nodes, *counts, pruning, last_report, budgets_spent = rows[0]
    by_kind: dict[str, dict[str, int]] = {}
    for kind, state, count in orjson.loads(jobs):
        of_kind = by_kind.setdefault(OTHER if kind is None else kind, {})
        of_kind[state] = of_kind.get(state, 0) + count
    ready, waiting = _counted(jobs_ready), _counted(suspended)
    now_ms -= round(store.blind_s(rows) * 1_000)
    ticking = []
    for node_id, seen_ms, *pace in orjson.loads(nodes):
        silent_ms = max(0, now_ms - seen_ms)
        missed, state = missed_ticks(silent_ms, *pace), state_of(silent_ms, *pace, has_left=False)
        ticking.append(CensusNode(node_id, silent_ms / 1_000, missed, state))
    ticking.sort(key=lambda node: (node.silent_s, node.node_id))
    passes = {
        subject: CensusPruning(pruned, needed, None if done_ms is None else max(0, now_ms - done_ms) / 1_000)
        for subject, pruned, needed, done_ms in orjson.loads(pruning)
    }
    spent = dict(orjson.loads(budgets_spent))
    return Census._make((by_kind, ready, waiting, ticking, *counts, passes, last_report, spent))


async def count_suspended(store: Store, clock: MeshClock) -> dict[str, int]:
    """Return the number of jobs that wait without a worker, by kind; a kind without any is not listed."""
    rows = await store.read(_SQL["suspended"], (*store.mesh_id, clock.now_ms))
    return {row["kind"]: row["jobs"] for row in rows}


def _counted(jobs: str) -> Counter[str]:
    """Return the number of jobs by kind."""
    counts: Counter[str] = Counter()
    for kind, count in orjson.loads(jobs):
        counts[OTHER if kind is None else kind] += count
    return counts
