"""Agents: whether each is alive, where, and what it holds, runs and waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import NotKnown
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.nodes.agent_state import QUIET_MS, AgentState, agent_state
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

MAX_LISTED: Final = 5
"""The maximum number of locks, jobs and awaited keys that are listed of an agent; all are counted."""

MAX_COUNTED: Final = 1_000
"""The maximum number of unread messages, and of phrases, that are counted of an agent."""

MAX_AGENTS: Final = 200
"""The maximum number of agents in an answer."""

_COST_MS: Final = 24 * 3_600_000
_RETENTION_MS: Final = 30 * 24 * 3_600_000
_MAX_KEPT: Final = 10_000
_PRUNED_AT_ONCE: Final = 500
_MAX_DETAILS: Final = 20
_SCANNED_ENTRIES: Final = 5_000
_SCANNED_MESSAGES: Final = 10_000
_SQL: Final = named("agents")


class AgentJob(NamedTuple):
    """A job that an agent runs, and since when."""

    job_id: str
    kind: str
    started_ms: int | None


class Agent(NamedTuple):
    """An agent. The lists may be cut short; the counts of locks, jobs and awaited keys are complete.

    `bu` and `cost`: what its phrases of the last 24 hours cost. `unread`: messages not yet acknowledged.
    """

    agent_id: str
    state: AgentState
    node_id: str | None
    last_seen_ms: int | None
    age_ms: int | None
    first_seen_ms: int | None
    last_action: str | None
    lock_count: int
    locks: tuple[str, ...]
    waits_for_count: int
    waits_for: tuple[str, ...]
    job_count: int
    jobs: tuple[AgentJob, ...]
    task_id: str | None
    task_state: str | None
    unread: int
    bu: float
    cost: float


class LockOfAgent(NamedTuple):
    """A lock that an agent holds, and until when."""

    lock_key: str
    expires_at: str


class JobOfAgent(NamedTuple):
    """A job that an agent has taken or scheduled."""

    job_id: str
    kind: str
    state: str


class AgentAction(NamedTuple):
    """An entry of the log by which an agent acted, or tried to."""

    op_id: str
    kind: str
    hlc: str
    accepted: bool
    reason: str | None


class AgentDetails(NamedTuple):
    """What one agent holds and has done last. The lists are cut short.

    `unacknowledged`: messages that it has received and not acknowledged. `awaiting`: messages that it has
    sent and that are not acknowledged. Scheduled jobs and actions are those in the last part of the log.
    """

    locks: Sequence[LockOfAgent] = ()
    taken: Sequence[JobOfAgent] = ()
    scheduled: Sequence[JobOfAgent] = ()
    unacknowledged: int = 0
    awaiting: int = 0
    last_actions: Sequence[AgentAction] = ()


class Agents:
    """List the agents of the mesh, and prune those not seen for a month."""

    def __init__(self, store: Store, clock: MeshClock) -> None:
        self._store = store
        self._clock = clock

    async def listed(
        self, *, after: str = "", limit: int = MAX_AGENTS, with_gone: bool = False, fresh: bool = False
    ) -> list[Agent]:
        """Return agents by name, after a name; only with `with_gone` those not seen for an hour."""
        since_ms = 0 if with_gone else self._clock.now_ms - QUIET_MS
        return await self._read("page", after, since_ms, min(limit, MAX_AGENTS), fresh=fresh)

    async def find(self, agent_id: str) -> Agent:
        """Return one agent; raise `NotKnown` if it was not seen within a month."""
        found = await self._read("one", agent_id, 0, 1)
        if not found:
            raise NotKnown(
                f"agent {agent_id!r} not found: it has not acted in this mesh",
                hint="run `vox-mesh agents --all` to see all agents",
            )
        return found[0]

    async def details(self, agent_id: str) -> AgentDetails:
        """Return what an agent holds and has done last, read from the primary."""
        limits = (_MAX_DETAILS, _SCANNED_ENTRIES, _SCANNED_MESSAGES, iso_of(self._clock.now_ms))
        values = (*self._store.mesh_id, agent_id, *limits)
        record = (await self._store.read(_SQL["details"], values, fresh=True)).value
        try:
            locks, taken, scheduled, unacknowledged, awaiting, actions = orjson.loads(record)
        except orjson.JSONDecodeError:  # a row holds text that no node can have written
            return AgentDetails()
        return AgentDetails(
            [LockOfAgent._make(each) for each in locks],
            [JobOfAgent._make(each) for each in taken],
            [JobOfAgent._make(each) for each in scheduled],
            unacknowledged,
            awaiting,
            [AgentAction(op_id, kind, hlc, bool(done), why) for op_id, kind, hlc, done, why in actions],
        )

    async def _read(
        self,
        name: str,
        after: str,
        since_ms: int,
        limit: int,
        *,
        fresh: bool = False,
    ) -> list[Agent]:
        now_ms = self._clock.now_ms
        values = self._values(now_ms, after, since_ms, limit)
        rows = await self._store.read(_SQL[name], values, fresh=fresh)
        return _parse([row[0] for row in rows], now_ms)

    def newest_values(self, limit: int) -> tuple[Value, ...]:
        """Return the values of the part `NEWEST`, which then returns about twice `limit` records at most."""
        now_ms = self._clock.now_ms
        return self._values(now_ms, "", now_ms - QUIET_MS, limit)

    def _values(self, now_ms: int, after: str, since_ms: int, limit: int) -> tuple[Value, ...]:
        bounds = (after, since_ms, limit, MAX_LISTED, MAX_COUNTED, now_ms - _COST_MS, DEAD_AFTER_TICKS)
        return (*self._store.mesh_id, now_ms, iso_of(now_ms), *bounds)

    def prune_script(self) -> Script:
        """Return the script that prunes agents not seen for a month, and the oldest of too many."""
        values = (*self._store.mesh_id, _RETENTION_MS, _MAX_KEPT, _PRUNED_AT_ONCE)
        return Script(Statement(_SQL["prune"], values), repeatable=True)


_ORDER: Final = {state: place for place, state in enumerate(AgentState)}


def newest_agents(records: Sequence[str], now_ms: int, limit: int) -> list[Agent]:
    """Return the agents of records of the part `NEWEST` in hex, live ones first."""
    found = _parse([bytes.fromhex(record) for record in records], now_ms)
    return sorted(found, key=lambda agent: (_ORDER[agent.state], agent.agent_id))[:limit]


def _parse(records: Sequence[Any], now_ms: int) -> list[Agent]:
    found = (_agent(record, now_ms) for record in records)
    return [agent for agent in found if agent is not None]


def _agent(record: Any, now_ms: int) -> Agent | None:
    """Return an agent; `None` if its row holds text that no node can have written."""
    try:
        values: Sequence[Any] = orjson.loads(record)
    except orjson.JSONDecodeError:
        return None
    agent_id, node_id, is_attached, is_announced, is_node_live, action, first_seen_ms, seen_ms, *rest = values
    locks, some_locks, waits, some_waits, jobs, some_jobs, task_id, task_state, unread, (bu, cost) = rest
    age_ms = max(0, now_ms - seen_ms) if seen_ms else None
    state = agent_state(
        QUIET_MS + 1 if age_ms is None else age_ms,
        is_on_live_node=bool(is_announced or (is_attached and is_node_live)),
        is_with_dead_node=bool(is_attached and not is_node_live),
        is_busy=bool(locks or waits),
    )
    return Agent(
        agent_id=agent_id,
        state=state,
        node_id=node_id or None,
        last_seen_ms=seen_ms or None,
        age_ms=age_ms,
        first_seen_ms=first_seen_ms,
        last_action=action,
        lock_count=locks or 0,
        locks=tuple(some_locks or ()),
        waits_for_count=waits or 0,
        waits_for=tuple(some_waits or ()),
        job_count=jobs or 0,
        jobs=tuple(AgentJob(*job) for job in some_jobs or ()),
        task_id=task_id,
        task_state=task_state,
        unread=unread,
        bu=round(bu, 6),
        cost=round(cost, 6),
    )
