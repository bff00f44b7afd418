"""The overview: the whole mesh at one moment, for a screen, a page or a demo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final, TypeVar

import orjson

from vox_mesh.errors import BadValue, NoAnswer
from vox_mesh.locks.scripts import MESH_PREFIX
from vox_mesh.model.grants.approval import ApprovalRequest
from vox_mesh.model.jobs.records import HELD, JobState
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.rhythm.reports import BarReport, parse_report
from vox_mesh.nodes.agents import newest_agents
from vox_mesh.nodes.nodes import Node, is_sound
from vox_mesh.rhythm.rhythm import OFFICE
from vox_mesh.rhythm.tempo.incidents import Incident
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.views.agents.agents import AgentView
from vox_mesh.views.grants.approvals import act_lines
from vox_mesh.views.grants.pending import PendingRequests
from vox_mesh.views.nodes import NodeStanding, NodeView, with_standings
from vox_mesh.views.rhythm import BeatView, IncidentView, TaskStatusView

T = TypeVar("T")

MAX_ITEMS: Final = 200
"""The maximum number of items of each sort."""

MAX_AGENTS: Final = 50
"""The maximum number of agents: each has several lists and counts."""

_SQL: Final = named("overview")
_READ_TIMEOUT_S: Final = 3.0

_GONE_ORDER: Final = {NodeState.DEAD: 1, NodeState.LEFT: 2}
_JOB_ORDER: Final = (
    JobState.RUNNING,
    JobState.CLAIMED,
    JobState.FAILED,
    JobState.PENDING,
    JobState.ABORTED,
    JobState.SUCCEEDED,
)
_MESSAGE_ORDER: Final = ("overdue", "dead", "unread", "claimed")


class OverviewParts(IntFlag):
    """The parts of an overview, by the flags of the query. A part that is not read is empty."""

    NODES = 1
    AGENTS = 2
    JOBS = 4
    LOCKS = 8
    MESSAGES = 16
    CONFLICTS = 32
    APPROVALS = 64
    STATUS = 128
    RHYTHM = 256
    ALL = 511


@dataclass(frozen=True, slots=True)
class KindLine:
    """How many jobs of a kind there are in each state; `oldest_ms`: how long one could have been claimed."""

    kind: str
    jobs: Mapping[str, int]
    oldest_ms: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class JobLine:
    """A running, failed or waiting job.

    `since_ms`: how long it has run or waited, or how long ago it ended. `due_ms`: when its claim or its
    waiting time ends, if at all.
    """

    job_id: str
    kind: str
    state: str
    priority: int
    waits: int
    claimer: str | None
    attempts: int
    max_attempts: int
    since_ms: int
    due_ms: int | None
    exit_code: int | None
    reason: str | None
    progress: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class WaiterLine:
    """A waiter for a key."""

    lock_key: str
    node_id: str
    agent_id: str
    is_shared: bool
    since_ms: int


@dataclass(frozen=True, slots=True)
class LockLine:
    """A held key and its waiters, in the order of the queue."""

    lock_key: str
    fence_token: int
    holder_node: str
    holder_agent: str
    is_shared: bool
    age_ms: int
    left_ms: int
    waiters: tuple[WaiterLine, ...]


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A message that is overdue, dead, unread or claimed, which is its `standing`."""

    message_uuid: str
    sender_agent: str
    receiver_agent: str
    msg_type: str
    priority: int
    standing: str
    age_ms: int
    attempts: int
    max_attempts: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class ConflictLine:
    """An optimistic write in conflict that waits for a resolution."""

    conflict_id: str
    table_name: str
    row_key: str
    left_by: str
    right_by: str | None
    deferred_to: str | None
    age_ms: int


@dataclass(frozen=True, slots=True)
class ApprovalLine:
    """What an agent asks for and no one has decided on yet; `left_ms`: until it expires."""

    approval_id: str
    agent: str
    operation: str
    asks_for: tuple[str, ...]
    age_ms: int
    left_ms: int


@dataclass(frozen=True, slots=True)
class Mail:
    """The number of messages that are not settled, by state."""

    unread: int
    claimed: int
    overdue: int
    dead: int


@dataclass(frozen=True, slots=True)
class RhythmLine:
    """The current beat, the report of the last bar that has one, and the declared incident."""

    beat: BeatView
    report: BarReport | None
    incident: IncidentView | None


@dataclass(frozen=True, slots=True)
class DatabaseLine:
    """The backend, its response time, and the state of this process's connection to it."""

    home: str
    address: str
    server: str
    circuit: str
    answered_ms: float


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the mesh. The lists may be cut short; the counts are complete.

    `last_op_id` rises with every op: two overviews give the rate. `waiters` are the waiters whose key is not
    held itself: they wait for a lock that overlaps it.
    """

    now_ms: int
    nodes: tuple[NodeView, ...]
    agents: tuple[AgentView, ...]
    draining: tuple[str, ...]
    kinds: tuple[KindLine, ...]
    jobs: tuple[JobLine, ...]
    locks: tuple[LockLine, ...]
    waiters: tuple[WaiterLine, ...]
    mail: Mail
    messages: tuple[MessageLine, ...]
    open_conflicts: int
    conflicts: tuple[ConflictLine, ...]
    open_approvals: int
    approvals: tuple[ApprovalLine, ...]
    status: tuple[TaskStatusView, ...]
    last_op_id: int
    rhythm: RhythmLine
    database: DatabaseLine

    @property
    def live(self) -> int:
        """The number of nodes that have neither left nor died."""
        return sum(node.state not in _GONE_ORDER for node in self.nodes)

    @property
    def replica_lags_ms(self) -> list[int]:
        """The replica lags that live nodes report."""
        live = (node for node in self.nodes if node.state not in _GONE_ORDER)
        return [node.replica_lag_ms for node in live if node.replica_lag_ms is not None]

    def jobs_in(self, state: str) -> int:
        """Return the number of jobs in a state."""
        return sum(kind.jobs.get(state, 0) for kind in self.kinds)


async def overview(mesh: MeshServices) -> Overview:
    """Return the current overview."""
    return await OverviewReader(mesh).read()


class OverviewReader:
    """Reads the overview of one mesh repeatedly; rarely changing parts are cached."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._address: tuple[str, str] | None = None
        self._standings: tuple[object, dict[str, NodeStanding]] = (None, {})
        self._tempos: str | None = None
        self._requests = PendingRequests(mesh)

    async def read(self, parts: OverviewParts = OverviewParts.ALL) -> Overview:
        """Return the current overview, read with one query that has a deadline of some seconds."""
        store = self._mesh.store
        started = time.monotonic()
        since_ms = self._mesh.rhythm.status_queries.since_ms
        values = (
            *self._mesh.agents.newest_values(MAX_AGENTS),
            MAX_ITEMS,
            MESH_PREFIX + OFFICE,
            since_ms,
            int(parts),
        )
        # Read from the primary: times are relative to its clock.
        row: Row = (await store.read(_SQL["overview"], values, fresh=True, timeout=_READ_TIMEOUT_S))[0]
        took_ms = (time.monotonic() - started) * 1_000
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                nodes = await self._nodes(row) if parts & OverviewParts.NODES else []
                rhythm = await self._rhythm(row)
                status = await self._status(row)
                approvals = await self._approvals(row)
                database = await self._database(took_ms)
        except TimeoutError:
            raise NoAnswer(f"no answer came within {_READ_TIMEOUT_S:g} s") from None
        return _make_overview(row, nodes, rhythm, status, approvals, database)

    async def _nodes(self, row: Row) -> list[NodeView]:
        rows = filter(is_sound, orjson.loads(row["nodes"]))
        found = [Node._make((*each, row["now_ms"])) for each in rows]
        mark = (row["roles"], {node.node_id: node.kinds for node in found})
        if self._standings[0] != mark:
            standings = {node.node_id: each for node, each in await with_standings(self._mesh, found)}
            self._standings = mark, standings
        views = [NodeView.of(node, self._standings[1][node.node_id]) for node in found]
        return sorted(views, key=lambda each: (_GONE_ORDER.get(NodeState(each.state), 0), each.node_id))

    async def _rhythm(self, row: Row) -> RhythmLine:
        rhythm = self._mesh.rhythm
        if row["tempos"] != self._tempos:
            await rhythm.policies.refresh(fresh=True)
            self._tempos = row["tempos"]
        incident = row["incident"]
        return RhythmLine(
            BeatView.of_frame(rhythm.frame(row["now_ms"]), row["leader"]),
            parse_report(row["report"]),
            None if incident is None else IncidentView.of(Incident._make(orjson.loads(incident))),
        )

    async def _status(self, row: Row) -> list[TaskStatusView]:
        records = map(bytes.fromhex, orjson.loads(row["statuses"]))
        page = await self._mesh.rhythm.status_queries.parse(records, MAX_ITEMS, fresh=True)
        return [TaskStatusView.of(self._mesh, each) for each in page.items]

    async def _approvals(self, row: Row) -> list[ApprovalLine]:
        found = await self._requests.of(orjson.loads(row["approvals"]))
        return [_approval(each, row["now_ms"]) for each in found]

    async def _database(self, took_ms: float) -> DatabaseLine:
        store = self._mesh.store
        if self._address is None:
            facts = (await store.status()).engine
            self._address = None if facts is None else (facts.address, facts.server)
        address, server = self._address or ("", "")
        return DatabaseLine(
            home=store.backend.value,
            address=address,
            server=server,
            circuit=store.circuit,
            answered_ms=round(took_ms, 1),
        )


def _make_overview(
    row: Row,
    nodes: Sequence[NodeView],
    rhythm: RhythmLine,
    status: Sequence[TaskStatusView],
    approvals: Sequence[ApprovalLine],
    database: DatabaseLine,
) -> Overview:
    now_ms: int = row["now_ms"]
    waiters = list(_readable(row["waiters"], lambda each: _waiter(each, now_ms)))
    locks = tuple(_readable(row["locks"], lambda each: _lock(each, waiters, now_ms)))
    held = {lock.lock_key for lock in locks}
    jobs = list(_readable(row["jobs"], lambda each: _job(each, now_ms)))
    messages = list(_readable(row["messages"], lambda each: _message(each, now_ms)))
    return Overview(
        now_ms=now_ms,
        nodes=tuple(nodes),
        agents=tuple(map(AgentView.of, newest_agents(orjson.loads(row["agents"]), now_ms, MAX_AGENTS))),
        draining=tuple(orjson.loads(row["drains"])),
        kinds=_kinds(row, now_ms),
        jobs=tuple(sorted(jobs, key=lambda job: _JOB_ORDER.index(JobState(job.state)))),
        locks=locks,
        waiters=tuple(each for each in waiters if each.lock_key not in held),
        mail=Mail(*orjson.loads(row["mail"])),
        messages=tuple(sorted(messages, key=lambda each: _MESSAGE_ORDER.index(each.standing))),
        open_conflicts=row["open_conflicts"],
        conflicts=tuple(_readable(row["conflicts"], lambda each: _conflict(each, now_ms))),
        open_approvals=row["open_approvals"],
        approvals=tuple(approvals),
        status=tuple(status),
        last_op_id=row["last_op_id"] or 0,
        rhythm=rhythm,
        database=database,
    )


def _readable(rows: str, line: Callable[[Sequence[Any]], T]) -> Iterator[T]:
    """Return the lines of rows, without those of hostile rows: they hold no times."""
    for each in orjson.loads(rows):
        with suppress(BadValue, ValueError, TypeError, OverflowError):
            yield line(each)


def _kinds(row: Row, now_ms: int) -> tuple[KindLine, ...]:
    counts: dict[str, dict[str, int]] = {}
    for kind, state, jobs in orjson.loads(row["kinds"]):
        counts.setdefault(kind, {})[state] = jobs
    longest, paused = orjson.loads(row["longest"]), orjson.loads(row["paused"])
    return tuple(
        KindLine(
            kind, jobs, max(0, now_ms - longest[kind]) if kind in longest else None, is_paused=kind in paused
        )
        for kind, jobs in sorted(counts.items())
    )


def _job(values: Sequence[Any], now_ms: int) -> JobLine:
    job_id, kind, state, priority, waits, not_before_ms, claimer, lease_until_ms, *rest = values
    attempts, max_attempts, created_ms, started_ms, ended_ms, exit_code, reason, progress, message = rest
    is_held = state in HELD
    began_ms = ended_ms or (started_ms if is_held else None) or created_ms
    due_ms = lease_until_ms if is_held else not_before_ms if state == JobState.PENDING else None
    return JobLine(
        job_id=job_id,
        kind=kind,
        state=state,
        priority=priority,
        waits=waits,
        claimer=claimer,
        attempts=attempts,
        max_attempts=max_attempts,
        since_ms=max(0, now_ms - began_ms),
        due_ms=None if due_ms is None or due_ms <= now_ms else due_ms - now_ms,
        exit_code=exit_code,
        reason=reason,
        progress=progress,
        message=message,
    )


def _waiter(values: Sequence[Any], now_ms: int) -> WaiterLine:
    lock_key, node_id, agent_id, is_shared, since = values
    return WaiterLine(lock_key, node_id, agent_id, bool(is_shared), max(0, now_ms - milliseconds_at(since)))


def _lock(values: Sequence[Any], waiters: Iterable[WaiterLine], now_ms: int) -> LockLine:
    lock_key, token, node, agent, is_shared, acquired_at, expires_at = values
    return LockLine(
        lock_key=lock_key,
        fence_token=token,
        holder_node=node,
        holder_agent=agent,
        is_shared=bool(is_shared),
        age_ms=max(0, now_ms - milliseconds_at(acquired_at)),
        left_ms=max(0, milliseconds_at(expires_at) - now_ms),
        waiters=tuple(each for each in waiters if each.lock_key == lock_key),
    )


def _message(values: Sequence[Any], now_ms: int) -> MessageLine:
    message_uuid, sender, receiver, msg_type, priority, state, created_at, ack_by_ms, *rest = values
    if state == "dead":
        standing = "dead"
    elif ack_by_ms is not None and ack_by_ms <= now_ms:
        standing = "overdue"
    else:
        standing = "unread" if state == "stored" else "claimed"
    age_ms = max(0, now_ms - milliseconds_at(created_at))
    return MessageLine(message_uuid, sender, receiver, msg_type, priority, standing, age_ms, *rest)


def _conflict(values: Sequence[Any], now_ms: int) -> ConflictLine:
    conflict_id, table_name, row_key, left_node, left_agent, right_node, deferred_to, created_at = values
    age_ms = max(0, now_ms - milliseconds_at(created_at))
    left_by = left_agent or left_node
    return ConflictLine(conflict_id, table_name, row_key, left_by, right_node, deferred_to, age_ms)


def _approval(request: ApprovalRequest, now_ms: int) -> ApprovalLine:
    return ApprovalLine(
        approval_id=request.approval_id,
        agent=request.agent,
        operation=request.operation.name,
        asks_for=tuple(act_lines(request)),
        age_ms=max(0, now_ms - request.asked_ms),
        left_ms=max(0, request.expires_ms - now_ms),
    )
