"""Nodes: the members of the mesh, their states by the database's clock, and what all of them know."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import orjson

from vox_mesh.errors import NodeInUse, NotKnown, Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.nodes.liveness import (
    DEAD_AFTER_TICKS,
    REMOVE_NODE,
    STALE_MS,
    NodeState,
    missed_ticks,
    state_of,
)
from vox_mesh.model.nodes.node_address import NodeAddress, SignedAddress
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.database_clock import FIRST_READ, hear_first
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Statement
from vox_mesh.store.store import Store

_SQL: Final = named("nodes")
_CACHE_S: Final = 5.0
_POLL_INTERVAL_S: Final = 1.0  # a node that falls silent commits nothing
_DEBOUNCE_S: Final = 0.2
_IS_LIVE: Final = "node_is_live"
_REMOVED: Final = ("remove", "remove_vitals", "remove_agents", "remove_receivers")


class Node(NamedTuple):
    """A node as its last heartbeat described it, seen at `now_ms`."""

    node_id: str
    agent_id: str | None
    incarnation: int
    beats: int
    last_seen_ms: int
    consuming_ms: int | None
    progressing_ms: int | None
    left_ms: int | None
    started_ms: int
    tick_ms: int
    activity: str
    host: str
    pid: int
    version: str
    schema_version: int | None
    control_addr: str | None
    public_key: str
    kinds: str
    capacity: int
    load: int
    clock_distance_ms: int
    machine_id: str
    place: str
    policy_roots: str | None
    written: int | None
    waiting: int | None
    replica_lag_ms: int | None
    faults: str | None
    spare_ms: int
    now_ms: int

    @property
    def age_ms(self) -> int:
        """Return the milliseconds since its last heartbeat."""
        return max(0, self.now_ms - self.last_seen_ms)

    @property
    def missed(self) -> int:
        """Return how many heartbeats it has missed."""
        return missed_ticks(self.age_ms, self.tick_ms, self.spare_ms)

    @property
    def state(self) -> NodeState:
        """Return the state that its silence implies."""
        return state_of(self.age_ms, self.tick_ms, self.spare_ms, has_left=self.left_ms is not None)

    @property
    def is_consuming(self) -> bool:
        """Return whether it still takes work."""
        return self._is_fresh(self.consuming_ms)

    @property
    def is_progressing(self) -> bool:
        """Return whether its work progresses."""
        return self._is_fresh(self.progressing_ms)

    def _is_fresh(self, sign_ms: int | None) -> bool:
        return sign_ms is not None and self.now_ms - sign_ms <= STALE_MS + self.spare_ms


_NUMBERS: Final = [
    (at, "None" in str(kind)) for at, kind in enumerate(Node.__annotations__.values()) if "int" in str(kind)
][:-1]  # without `now_ms`, which is not of the row
_TICK: Final = Node._fields.index("tick_ms")
_SPARE: Final = Node._fields.index("spare_ms")
_QUIET_MS: Final = 10_000
"""A mesh in which nodes may let ticks pass has many nodes: for so long it is not without any heartbeat."""


def is_sound(row: Sequence[Any]) -> bool:
    """Return whether a row is one that a node can have written: its numbers are numbers."""
    numbers = all(type(row[at]) is int or (row[at] is None and is_optional) for at, is_optional in _NUMBERS)
    return numbers and row[_TICK] > 0


class WriteOp(Protocol):
    """Writes an op and its effects."""

    async def __call__(self, op: Op, *statements: Statement) -> Outcome:
        """Write them in one transaction."""


class Nodes:
    """List and watch the nodes of the mesh."""

    def __init__(self, store: Store, clock: MeshClock, write_op: WriteOp) -> None:
        """`write_op` writes an op by a grant of the acting agent, if it needs one."""
        self._store = store
        self._clock = clock
        self._write_op = write_op
        self._known: dict[str, tuple[Any, ...]] = {}  # rows as last read
        self._change_count = -1
        self._changed_ms = 0  # when another count was first seen

    async def live_nodes_from_db(self, stale_threshold_ms: int = STALE_MS) -> list[Node]:
        """Return the nodes that have not left and were seen within the threshold."""
        now_ms = await self.now_ms()
        return await self._nodes("live_heartbeat_marks", now_ms, now_ms - stale_threshold_ms)

    async def all(self) -> list[Node]:
        """Return all nodes that ever joined, including left and dead ones."""
        return await self._nodes("heartbeat_marks", await self.now_ms())

    async def find(self, node_id: str) -> Node | None:
        """Return one node, or `None` if it is not known."""
        rows = await self._rows_of([node_id])
        return Node._make((*rows[0], await self.now_ms())) if rows else None

    async def require(self, node_id: str) -> Node:
        """Return one node; raise `NotKnown` if it never joined."""
        node = await self.find(node_id)
        if node is None:
            raise NotKnown(
                f"node {node_id!r} not found: it never joined this mesh",
                hint="run `vox-mesh nodes --all` to see all nodes",
            )
        return node

    async def remove(self, node_id: str) -> str:
        """Remove a node that has died or left from the membership. Return the op that records it.

        Its entries in the log and its keys stay. If it comes back, it joins again.

        Raises:
            NotKnown: No node of this name is a member.
            NodeInUse: It is live.
        """
        node = await self.require(node_id)
        whose = (*self._store.mesh_id, node_id)
        has_ended = Statement(_SQL["refuse_unless_ended"], (*whose, DEAD_AFTER_TICKS), refusal=_IS_LIVE)
        effects = [Statement(_SQL[name], whose) for name in (*_REMOVED, "withdraw_address")]
        payload = canonical({"incarnation": node.incarnation, "node": node_id})
        op = Op(REMOVE_NODE, payload, signed=True)
        try:
            return (await self._write_op(op, has_ended, *effects)).key
        except Refused as refused:
            if refused.reason != _IS_LIVE:
                raise
            raise NodeInUse(
                f"node {node_id!r} not removed: it is {node.state.value}, "
                f"its last heartbeat was {node.age_ms / 1_000:.1f} s ago",
                hint=f"stop it first; a silent node is dead after {DEAD_AFTER_TICKS:g} missed heartbeats",
            ) from None

    async def addresses(self) -> dict[str, SignedAddress]:
        """Return the address that each node announces, with its signature, which is not verified here."""
        rows = await self._store.read(_SQL["addresses"], self._store.mesh_id)
        return {row[0]: SignedAddress(NodeAddress(*row[:4]), row[4]) for row in rows}

    async def watch(self) -> AsyncGenerator[list[Node], None]:
        """Yield all nodes now, and again when one joins, leaves, or changes its state or activity."""
        last: Any = None
        async for turn in self._store.changes(interval_s=_POLL_INTERVAL_S, debounce_s=_DEBOUNCE_S):
            nodes: list[Node] = []
            with turn.retry_if_unavailable():
                nodes = await self.all()
            now = [_watched_values(node) for node in nodes]
            if nodes and now != last:
                last = now
                yield nodes

    async def _nodes(self, name: str, now_ms: int, *values: int) -> list[Node]:
        """Return the nodes with these marks; full rows are read only of nodes that ticked since."""
        marks: Any = await self._store.read(_SQL[name], (*self._store.mesh_id, *values))
        quiet_ms = self._quiet_ms(now_ms)
        now_ms -= round(self._store.blind_s(marks) * 1_000)
        known = self._known
        new: list[str] = []
        for node_id, incarnation, beats in marks:
            row = known.get(node_id)
            if type(node_id) is not str:
                continue  # no node wrote it
            if row is None or row[2] != incarnation or row[3] != beats:
                new.append(node_id)
        if new:
            known |= {row["node_id"]: tuple(row) for row in await self._rows_of(new)}
        rows = [known[node_id] for node_id, _, _ in marks if node_id in known]
        return [Node._make((*row, now_ms - quiet_ms if row[_SPARE] else now_ms)) for row in rows]

    def _quiet_ms(self, now_ms: int) -> int:
        """Return how long there was no commit, and so perhaps none was possible, beyond what is usual.

        A node that lets ticks pass would notice that late. Until then, the silence of others proves nothing.
        """
        if self._store.change_count != self._change_count:
            self._change_count, self._changed_ms = self._store.change_count, now_ms
        return max(0, now_ms - self._changed_ms - _QUIET_MS)

    async def _rows_of(self, node_ids: Sequence[str]) -> list[Row]:
        values = (*self._store.mesh_id, orjson.dumps(node_ids).decode())
        return [row for row in await self._store.read(_SQL["nodes"], values) if is_sound(row)]

    async def now_ms(self) -> int:
        """Return the time of the mesh; the database is asked only once."""
        if not self._clock.is_set:
            await self.check_clock()
        return self._clock.now_ms

    async def check_clock(self) -> None:
        """Ask the database for its time even if it is known: our clock may have stood still since."""
        await ask_time(self._store, self._clock)


class Features:
    """Answer whether every live node knows a schema version.

    Ask before you write what older code would misread. The answer is up to 5 seconds old. It can't foresee a
    node that is started with older code afterwards, and ignores commands, which announce no version.
    """

    def __init__(self, store: Store, nodes: Nodes, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._nodes = nodes
        self._monotonic = monotonic
        self._oldest = VERSION
        self._cached_until: float | None = None

    async def is_known_to_all(self, version: int) -> bool:
        """Return whether no live node runs code for a schema version below this one."""
        return await self.oldest_live_version() >= version

    async def oldest_live_version(self) -> int:
        """Return the lowest schema version that a live node announced; with no live node, that of this code.

        A node counts as live until it has left, or is dead and has been silent for a minute.
        """
        if self._cached_until is None or self._monotonic() >= self._cached_until:
            now_ms = await self._nodes.now_ms()
            values = (*self._store.mesh_id, now_ms, STALE_MS, DEAD_AFTER_TICKS)
            oldest = (await self._store.read(_SQL["oldest_live_version"], values)).value
            self._oldest = VERSION if oldest is None else min(VERSION, oldest)
            self._cached_until = self._monotonic() + _CACHE_S
        return self._oldest


async def ask_time(store: Store, clock: MeshClock) -> None:
    """Ask the database for the time of the mesh, and set the clock by it."""
    started = clock.started()
    if not clock.is_set:
        hear_first(clock, (await store.read(FIRST_READ.sql, FIRST_READ.params, fresh=True))[0], started)
        return
    now_ms, correction_ms = (await store.read(_SQL["now"], fresh=True))[0]
    clock.heard(now_ms, started, correction_ms)


def _watched_values(node: Node) -> tuple[Any, ...]:
    """Return the values whose change is reported to watchers."""
    return node.node_id, node.state, node.incarnation, node.activity, node.load, node.kinds, node.agent_id
