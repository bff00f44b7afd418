"""A simulated world: a database, some nodes and their faults, from the first step to the final state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proof import losses, tables
from proof.checkers.incarnations import RECOVERY_S
from proof.checkers.locks import SETTLED
from proof.final_state import record_final_state
from proof.history import Event, Recorder, Step
from proof.monitor import Monitor
from proof.outside import MemoryOutside
from proof.simulate.faults import Clock, Fault, FaultPlan, Kind
from proof.simulate.loop import SimulatedProcess, new_loop
from proof.simulate.network import HEALTHY, Database, NetworkConditions
from proof.simulate.process import EPOCH_MS, REQUEST_S, NodeRun, SharedState
from proof.simulate.relay import RelayReceiver
from proof.witness import INSTALL
from proof.workload import Workload
from proof.workloads.consumers import CONSUMERS
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.nodes.clock import MAX_STEP_MS
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.schema.schema import ensure_schema
from vox_mesh.store.script import Statement
from vox_mesh.store.write.breaker import RESET_TIMEOUT_S

NODES: Final = ("ada", "bob", "cleo", "dan", "eve")
_AFTER_S: Final = 10.0
"""Within a TTL and this time every node can operate again, once all faults have healed."""

_CALM_S: Final = 8.0
"""How long the run continues after all faults have healed, at least."""

_LAST_S: Final = 240.0
"""The bound of the last operations, and of draining."""

_LOOK_S: Final = 0.25
_MONITOR_S: Final = 5.0
_FUSE_S: Final = 10.0
"""A node that is to be killed while busy, and is idle for this long, is killed anyway."""

_FORGOTTEN_S: Final = 40.0
"""After this time every lease from before a step is over, even if no node is left that knows of the step."""

_VISIBLE_MS: Final = MAX_STEP_MS + 10_000
"""A heartbeat this far ahead of the clock still shows a step when a process has started."""

_RECORDED: Final = """
SELECT coalesce((SELECT correction_ms FROM database_clock), 0) AS correction_ms, EXISTS (
    SELECT 1 FROM clock_witnesses
    WHERE low_ms IS NOT NULL AND epoch = coalesce((SELECT epoch FROM database_clock), 0)
) AS is_recorded,
    (SELECT coalesce(max(last_seen_ms), 0) FROM mesh_heartbeats WHERE left_ms IS NULL) AS newest_ms"""


def prepare_database() -> bytes:
    """Return the image of an empty database."""
    memory, loop = SharedMemory(lambda: EPOCH_MS), new_loop(random.random)
    loop.run_until_complete(ensure_schema(memory))
    loop.close()
    for sql in (*INSTALL, *tables.CREATE):
        memory.query_now(Statement(sql))
    return memory.image()


@dataclass
class SimulatedNode:
    """A node through all of its incarnations."""

    name: str
    clock: Clock
    incarnations: int = 0
    run: NodeRun | None = None
    is_away: bool = False
    lines: list[NetworkConditions] = field(default_factory=list)
    """The conditions of the connection to the database; the last one counts."""
    relays: list[NetworkConditions] = field(default_factory=list)

    def apply_conditions(self) -> None:
        """Apply the current conditions to its connections."""
        if self.run is not None:
            self.run.connection.channel.conditions = self.lines[-1] if self.lines else HEALTHY
            self.run.channel.conditions = self.relays[-1] if self.relays else HEALTHY


class World:
    """One run of one seed."""

    def __init__(
        self,
        seed: int,
        plan: FaultPlan,
        workloads: Sequence[Workload],
        image: bytes,
        keys: Mapping[str, SigningKey],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.events: Final[list[Event]] = []
        self._successful: set[str] = set()
        """The nodes with a successful operation since the last reset."""
        self._is_over = False
        self._seed = seed
        self._plan = plan
        self.loop = loop = new_loop(random.Random(f"steps {seed}").random, watch)
        loop.failed = self._unexpected
        self._ahead_ms = 0
        """How far the clock of the database is ahead."""
        self._hidden_until = 0.0
        """Until when a process that starts may be unable to know that the clock was set."""
        self._is_unsettled = False
        self._is_visible = False
        """Whether heartbeats show that it was set back."""
        self._rolling_back = asyncio.Lock()
        memory = SharedMemory(lambda: EPOCH_MS + self._ahead_ms + round(loop.now * 1_000), image)
        memory.keys |= keys
        self._database = Database(loop, memory, random.Random(f"lines {seed}"))
        names = NODES[: plan.nodes]
        self._nodes = [SimulatedNode(name, clock) for name, clock in zip(names, plan.clocks, strict=True)]
        self._shared = SharedState(
            *(loop, self._database, MemoryOutside(), workloads, names, plan.pace),
            *(asyncio.Event(), asyncio.Event(), self._receiver_of, plan.has_breaker),
        )
        self._recorder = self._recorder_of("stage", 1)

    def run(self) -> None:
        """Run it; the history is in `events`."""
        try:
            self.loop.run_until_complete(self._run())
        finally:
            self._is_over = True
            self.loop.close()
            self._database.memory.drop_now()

    def record_crash(self, where: str, error: BaseException) -> None:
        """Note a traceback of the running node."""
        self._unexpected(self.loop.running, error, where)

    def _unexpected(self, process: SimulatedProcess, error: BaseException, where: str = "a task") -> None:
        """Note a failure that no fault accounts for."""
        self._recorder.note("unexpected", player=process.name, where=where, error=repr(error))

    def _recorder_of(self, who: str, run: int) -> Recorder:
        return Recorder(who, run, self.loop.passing, self._write)

    def _write(self, event: Event) -> None:
        if not self._is_over:  # abandoned tasks write nothing
            self.events.append(event)
            if event.step is Step.OK:
                self._successful.add(event.who)

    def _receiver_of(self, name: str) -> RelayReceiver | None:
        run = next((each.run for each in self._nodes if each.name == name), None)
        return None if run is None else run.receiver

    # --- the run ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        keeping = asyncio.create_task(self._restart_nodes())
        every_s = _MONITOR_S * self._plan.slowness
        monitoring = asyncio.create_task(Monitor(self._ask, self._recorder).run(every_s))
        await self._run_faults()
        if self._plan.has_breaker:  # circuits may have opened just now
            await asyncio.sleep(RESET_TIMEOUT_S + REQUEST_S)
        self._recorder.note("healed")
        await self._recover()
        self._recorder.note("over")
        self._shared.over.set()
        await self._wait_for_all(lambda run: run.has_stopped.is_set(), "the last deeds")
        self._shared.draining.set()
        await self._wait_for_all(lambda run: run.is_drained.is_set(), "the draining")
        keeping.cancel()
        monitoring.cancel()
        for node in self._nodes:
            if node.run is not None:
                self.loop.kill(node.run.process)
                self._recorder.note("drained", player=node.name)
        await record_final_state(self._ask, self._recorder)

    async def _recover(self) -> None:
        """Continue until every node has had a successful operation, or should have."""
        healed, calm_s = self.loop.now, _CALM_S * self._plan.slowness
        if CONSUMERS in self._shared.workloads:
            calm_s += RECOVERY_S  # or nothing could be late
        self._successful.clear()
        while self.loop.now < healed + self._plan.pace.ttl_s + _AFTER_S:
            await asyncio.sleep(_LOOK_S)
            if self.loop.now > healed + calm_s and len(self._successful) == len(self._nodes):
                return

    async def _wait_for_all(self, is_done: Callable[[NodeRun], bool], what: str) -> None:
        """Wait until this holds for all nodes."""
        deadline = self.loop.now + _LAST_S * self._plan.slowness
        while late := [each for each in self._nodes if each.run is None or not is_done(each.run)]:
            if self.loop.now > deadline:
                for node in late:
                    self._recorder.note("unexpected", player=node.name, where=what, error="late")
                return
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, sql: str) -> list[dict[str, Any]]:
        rows = self._database.memory.query_now(Statement(sql))
        return [dict(zip(rows.columns, row, strict=True)) for row in rows]

    # --- nodes -----------------------------------------------------------------------------------

    async def _restart_nodes(self) -> None:
        """Restart nodes that have ended, until cancelled."""
        while True:
            self._check_clock()
            for node in self._nodes if self.loop.now >= self._hidden_until or self._is_visible else ():
                if node.run is None and not node.is_away:
                    self._start_node(node)
            await asyncio.sleep(_LOOK_S)

    def _start_node(self, node: SimulatedNode) -> None:
        node.incarnations += 1
        self._note("life.began", node, life=node.incarnations, node_id=node.name)
        recorder = self._recorder_of(node.name, node.incarnations)
        seed = f"{node.name} {node.incarnations} {self._seed}"
        node.run = run = NodeRun(self._shared, recorder, node.clock, seed)
        run.ended.add_done_callback(lambda _: self._on_end(node, run))
        node.apply_conditions()

    def _on_end(self, node: SimulatedNode, run: NodeRun) -> None:
        if node.run is run:
            node.run = None
        how, error = run.ended.result()
        self._note("life.ended", node, life=run.recorder.incarnation, how=how, error=error)

    def _note(self, what: str, node: SimulatedNode, **data: Any) -> None:
        self._recorder.note(what, player=node.name, **data)

    # --- faults ----------------------------------------------------------------------------------

    async def _run_faults(self) -> None:
        """Run all faults of the plan, until all have healed."""
        faults = [
            asyncio.create_task(self._run_fault(number, each))
            for number, each in enumerate(self._plan.faults)
        ]
        for at, is_storm in self._plan.storms:
            await self._until(at)
            self._recorder.note("storm.began" if is_storm else "calm.began")
        await self._until(self._plan.seconds)
        for task in faults:
            task.cancel()
        for end in await asyncio.gather(*faults, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    async def _until(self, at: float) -> None:
        await asyncio.sleep(at - self.loop.now)

    async def _run_fault(self, number: int, fault: Fault) -> None:
        await self._until(fault.at)
        about = {
            "kind": fault.kind,
            "id": number,
            "player": NODES[fault.node] if fault.node >= 0 else None,
            "repeats": fault.conditions is not None and fault.conditions.can_repeat(REQUEST_S),
        }
        self._recorder.note("fault.began", **about)
        try:
            await self._inject(fault)
        finally:
            self._recorder.note("fault.ended", **about)

    async def _inject(self, fault: Fault) -> None:
        node = self._nodes[fault.node]
        match fault.kind:
            case Kind.DATABASE:
                await self._stand_still(fault)
            case Kind.NETWORK | Kind.LINE | Kind.RELAY | Kind.SLOW | Kind.UNREACHABLE:
                await self._degrade_network(fault)
            case Kind.ROLLBACK | Kind.UNSEEN_ROLLBACK:
                await self._roll_back(fault)
            case Kind.HELD:
                await self._hold_transaction(fault)
            case Kind.DATABASE_CLOCK:
                await self._step_database_clock(fault)
            case _ if node.run is None or node.run.process.is_paused:
                pass
            case Kind.KILL:
                await self._kill(node, node.run, fault)
            case Kind.LEAVE:
                await self._leave(node, node.run, fault)
            case Kind.PAUSE:
                await self._pause(node, node.run, fault)
            case Kind.REPLACE:
                await self._replace(node, node.run, fault)
            case Kind.CLOCK:
                await self._skew_clock(node.run, fault)

    async def _stand_still(self, fault: Fault) -> None:
        self.loop.pause(self._database.process)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(self._database.process)

    async def _roll_back(self, fault: Fault) -> None:
        async with self._rolling_back:
            image, copied = self._database.memory.image(), self.loop.passing()
            await asyncio.sleep(fault.seconds)
            if fault.kind is Kind.UNSEEN_ROLLBACK:
                self._remove_witnesses()
            self._database.restore(image)
            now = self.loop.passing()
            self._recorder.note(losses.NOTE, kept_until=copied, lost_at=now, back_at=now)

    def _remove_witnesses(self) -> None:
        """Kill every node and delete what it remembers of the database."""
        for node in self._nodes:
            if node.run is not None:
                self._kill_now(node.run)
        self._database.memory.memories.clear()

    async def _hold_transaction(self, fault: Fault) -> None:
        self._database.hold()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._database.release()

    async def _step_database_clock(self, fault: Fault) -> None:
        """Set the database's clock, and set it right again after a while.

        A process that has not heard the time yet could not notice, so this waits until there is none.
        """
        await self._until_all_know_the_time()
        self._set_database_clock(fault.skew_ms)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await self._until_all_know_the_time()
            self._set_database_clock(-fault.skew_ms)

    async def _until_all_know_the_time(self) -> None:
        for _ in iter(self._is_any_node_new, False):
            await asyncio.sleep(_LOOK_S)

    def _is_any_node_new(self) -> bool:
        return any(each.run is not None and not each.run.knows_time for each in self._nodes)

    def _set_database_clock(self, by_ms: int) -> None:
        """Set the clock. A process that starts follows it, unless heartbeats or a record show the step."""
        self._ahead_ms += by_ms
        self._is_unsettled, self._is_visible = True, False
        self._hidden_until = self.loop.now + _FORGOTTEN_S
        self._recorder.note("database.clock", ahead_ms=self._ahead_ms)

    def _check_clock(self) -> None:
        """Check whether the last step is known, and whether the time of the mesh is right again."""
        if not self._is_unsettled:
            return
        row = self._database.memory.query_now(Statement(_RECORDED))[0]
        is_settled = abs(self._ahead_ms + row["correction_ms"]) <= MAX_STEP_MS
        if row["is_recorded"] or is_settled:
            self._hidden_until = 0.0
        now_ms = EPOCH_MS + self._ahead_ms + row["correction_ms"] + round(self.loop.now * 1_000)
        self._is_visible = row["newest_ms"] > now_ms + _VISIBLE_MS
        if is_settled:
            self._is_unsettled = False
            self._recorder.note(SETTLED)

    async def _degrade_network(self, fault: Fault) -> None:
        assert fault.conditions is not None
        targets = self._nodes if fault.node < 0 else [self._nodes[fault.node]]
        lists = [each.relays if fault.kind is Kind.RELAY else each.lines for each in targets]
        for conditions_list in lists:
            conditions_list.append(fault.conditions)
        self._apply_conditions()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            for conditions_list in lists:
                conditions_list.remove(fault.conditions)
            self._apply_conditions()

    def _apply_conditions(self) -> None:
        for node in self._nodes:
            node.apply_conditions()

    async def _kill(self, node: SimulatedNode, run: NodeRun, fault: Fault) -> None:
        node.is_away = True
        try:
            run.process.fuse = fault.fuse, lambda: self._kill_now(run)
            await asyncio.wait((run.ended,), timeout=_FUSE_S * self._plan.slowness)
            self._kill_now(run)
            await asyncio.sleep(fault.seconds)
        finally:
            run.process.fuse = None
            node.is_away = False

    def _kill_now(self, run: NodeRun) -> None:
        if not run.ended.done():
            self.loop.kill(run.process)
            run.ended.set_result(("killed", None))

    async def _leave(self, node: SimulatedNode, run: NodeRun, fault: Fault) -> None:
        node.is_away = True
        try:
            run.is_leaving.set()
            await asyncio.wait((run.ended,))
            await asyncio.sleep(fault.seconds)
        finally:
            node.is_away = False

    async def _pause(self, node: SimulatedNode, run: NodeRun, fault: Fault) -> None:
        self.loop.pause(run.process)
        self._note("paused", node)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(run.process)
            self._note("resumed", node)

    async def _replace(self, node: SimulatedNode, run: NodeRun, fault: Fault) -> None:
        self.loop.pause(run.process)
        self._note("paused", node)
        try:
            await asyncio.sleep(fault.seconds / 4)
            node.run = None
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(run.process)
            self._note("resumed", node)

    async def _skew_clock(self, run: NodeRun, fault: Fault) -> None:
        run.skew_ms += fault.skew_ms
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            run.skew_ms -= fault.skew_ms
