"""One run of a simulated node: a process with a mesh node and its workloads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from proof.history import Recorder
from proof.outside import Outside
from proof.simulate.faults import Clock
from proof.simulate.loop import SimulatedLoop, SimulatedProcess
from proof.simulate.network import Channel, Database
from proof.simulate.relay import TIMEOUT_S, RelayReceiver, SimulatedRelay, outbox_of
from proof.workload import Pace, Workload, WorkloadContext, WorkloadFunction
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.ulid import UlidSource
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.script import keys_from
from vox_mesh.testing.harness import IsolatedSettings

EPOCH_MS: Final = 1_800_000_000_000 - 30_000
"""The initial reading of all correct clocks: half a minute before a full minute, when crons are due."""

REQUEST_S: Final = 3.0
_DEADLINE_S: Final = 8.0
_RESTART_DELAY_S: Final = 1.0
_NOWHERE: Final = Path("/nonexistent")
"""A home directory that must not be used: nothing is written to disk."""

_TEMPO: Final = Path(__file__).with_name("tempo.yaml")


@cache
def settings_of(name: str, tick_s: float, *, has_breaker: bool) -> IsolatedSettings:
    """Return the settings of a node."""
    return IsolatedSettings(
        node_id=name,
        agent_id=name,
        home_dir=_NOWHERE,
        http=False,
        tempo_policy=_TEMPO,
        tick=f"{tick_s:g}s",
        db_deadline=f"{_DEADLINE_S:g}s",
        db_request_timeout=f"{REQUEST_S:g}s",
        db_circuit_breaker=has_breaker,
    )


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all nodes of a simulation share."""

    loop: SimulatedLoop
    database: Database
    outside: Outside
    workloads: Sequence[Workload]
    nodes: tuple[str, ...]
    pace: Pace
    over: asyncio.Event
    draining: asyncio.Event
    receiver_of: Callable[[str], RelayReceiver | None]
    has_breaker: bool


class NodeRun:
    """One run of a node. It starts when it is created."""

    def __init__(self, shared: SharedState, recorder: Recorder, clock: Clock, seed: str) -> None:
        self._shared = shared
        self._rng = random.Random(seed)
        self.recorder: Final = recorder
        self.process: Final = SimulatedProcess(recorder.who, rate=clock.rate, ahead_s=clock.ahead_s)
        self.skew_ms = clock.skew_ms - round(clock.ahead_s * 1_000)
        self.process.context.run(keys_from, UlidSource(self._wall_ms, self._rng.getrandbits))
        self.connection: Final = shared.database.connect(self.process, REQUEST_S)
        self.channel: Final = Channel(shared.loop, self.process, self._rng, TIMEOUT_S)
        self.receiver: RelayReceiver | None = None
        self._knows_time: Callable[[], bool] = lambda: False
        self.has_stopped = asyncio.Event()
        self.is_drained = asyncio.Event()
        self.is_leaving = asyncio.Event()
        self.ended: Final[asyncio.Future[tuple[str, str | None]]] = shared.loop.create_future()
        """How the run ended, and with what error. Set by `kill` as well."""
        self._active = len(shared.workloads)
        shared.loop.begin(self.process, self._open_and_run()).add_done_callback(self._end)

    @property
    def knows_time(self) -> bool:
        """Whether the node has heard the database's time."""
        return self._knows_time()

    def _wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + round(self.process.shows(self._shared.loop.now) * 1_000)

    def _end(self, task: asyncio.Task[MeshError | None]) -> None:
        if self.ended.done():
            return
        if (failure := task.exception()) is not None:
            self._shared.loop.failed(self.process, failure)
            self.ended.set_result(("broke", repr(failure)))
        else:
            error = task.result()
            self.ended.set_result(("left", None) if error is None else ("broke", error.line))

    async def _open_and_run(self) -> MeshError | None:
        """Run until ordered to leave; return the error if it could not."""
        dependencies = Dependencies(
            self._wall_ms,
            self._shared.loop.time,
            self._rng.random,
            self._rng.randbytes,
            self.connection,
            place=self.recorder.who,
            elapsed=self._shared.loop.time,
        )
        settings = settings_of(
            self.recorder.who, self._shared.pace.tick_s, has_breaker=self._shared.has_breaker
        )
        try:
            async with Mesh.open(settings, dependencies) as mesh:
                self.connection.circuit = lambda: mesh.store.circuit
                self.connection.probed = lambda count: self.recorder.note("probe", beside=count)
                self.recorder.note("up")
                self._knows_time = lambda: mesh.clock.is_set
                return await self._run_workloads(mesh)
        except MeshError as error:  # it could not start
            return error

    async def _run_workloads(self, mesh: MeshNode) -> MeshError | None:
        shared = self._shared
        outbox = outbox_of(mesh, SimulatedRelay(self.channel, shared.receiver_of), shared.loop.time)
        self.receiver = RelayReceiver(shared.loop, self.process, mesh)
        context = WorkloadContext(
            mesh, self.recorder, shared.outside, self._rng, shared.pace, shared.nodes, shared.over
        )
        running = asyncio.create_task(self._run_all(context))
        breaking = asyncio.create_task(mesh.broken())
        leaving = asyncio.create_task(self.is_leaving.wait())
        try:
            await asyncio.wait((running, breaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                self.is_drained.set()
                await asyncio.wait((breaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            return breaking.result() if breaking.done() else None
        finally:
            self.receiver = None
            for task in (running, breaking, leaving):
                task.cancel()
            await asyncio.gather(running, breaking, leaving, return_exceptions=True)
            await outbox.close()

    async def _run_all(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as group:
            for each in self._shared.workloads:
                group.create_task(self._run_one(context, each), name=each.name)

    async def _run_one(self, context: WorkloadContext, workload: Workload) -> None:
        """Run one workload until `over`, then drain it."""
        while not context.over.is_set():
            await self._tolerate(context, workload, workload.run)
            await context.rest(_RESTART_DELAY_S)
        self._active -= 1
        if not self._active:
            self.has_stopped.set()
        await self._shared.draining.wait()
        await self._tolerate(context, workload, workload.drain)

    async def _tolerate(
        self, context: WorkloadContext, workload: Workload, function: WorkloadFunction
    ) -> None:
        """Run a function of a workload; note an error of the mesh that it lets through."""
        try:
            await function(context)
        except MeshError as error:
            context.recorder.note("stumbled", workload=workload.name, error=error.line)
