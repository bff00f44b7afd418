"""A small stage: players in one virtual loop on one memory, some of whom are killed and begin again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proof.final_state import Ask, record_final_state
from proof.history import Event, History, Recorder
from proof.monitor import Monitor
from proof.outside import MemoryOutside
from proof.witness import INSTALL
from proof.workload import Pace, Workload, WorkloadContext
from proof.workloads.beats import tempo_of
from tests.support.nodes import virtual_time
from vox_mesh import Mesh
from vox_mesh.errors import NodeInUse
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.script import Statement
from vox_mesh.testing.harness import IsolatedSettings

PACE: Final = Pace(tick_s=5.0, ttl_s=15.0, rest_s=4.0)
_NODES: Final = ("ada", "bob", "cyd")
_DRAIN_S: Final = 300.0


@dataclass
class Instrument:
    """One run."""

    folder: Path
    workloads: Sequence[Workload]
    seed: int = 1
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.memory = SharedMemory(virtual_time.now_ms)
        rng = random.Random(self.seed)
        self.dependencies = Dependencies(
            *(virtual_time.now_ms, loop.time, rng.random, rng.randbytes),
            memory=self.memory,
            elapsed=loop.time,
        )
        self.outside = MemoryOutside()
        self.recorder = Recorder("stage", 1, loop.time, self.events.append)

    async def ask(self, statement: str) -> list[dict[str, Any]]:
        """Ask the database itself."""
        return [row.as_dict() for row in await self.memory.query(Statement(statement))]

    async def run(self, seconds: float) -> History:
        """Play for so long, then have all come to its end, and read it."""
        ask: Ask = self.ask
        (self.folder / "tempo.yaml").write_text(tempo_of(PACE))
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._end)
        monitor = Monitor(ask, Recorder("monitor", 1, loop.time, self.events.append))
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(monitor.run(every_s=PACE.tick_s))
            async with asyncio.TaskGroup() as nodes:
                for name in _NODES:
                    nodes.create_task(self._node(name, seconds))
            watching.cancel()
        await record_final_state(ask, self.recorder)
        await self.memory.drop()
        return History(self.events)

    def _end(self) -> None:
        self.recorder.note("healed")
        self.over.set()

    async def _node(self, name: str, seconds: float) -> None:
        """The last of the players dies in the middle, and begins again."""
        if name == _NODES[-1]:
            await self._run_node(name, 1, killed_after=seconds / 4)
            await self._run_node(name, 2)
        else:
            await self._run_node(name, 1)

    async def _run_node(self, name: str, incarnation: int, killed_after: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        settings = IsolatedSettings(
            node_id=name,
            home_dir=self.folder / name,
            http=False,
            tick=round(PACE.tick_s),
            tempo_policy=self.folder / "tempo.yaml",
        )
        recorder = Recorder(name, incarnation, loop.time, self.events.append)
        async with AsyncExitStack() as ending:
            while True:
                with suppress(NodeInUse):  # an earlier life of it is not known to be dead yet
                    mesh = await ending.enter_async_context(Mesh.open(settings, self.dependencies))
                    break
                await asyncio.sleep(PACE.tick_s)
            self._install()
            self.recorder.note("life.began", player=name, life=incarnation, node_id=name)
            recorder.note("up")
            rng = random.Random(f"{self.seed} {name} {incarnation}")
            context = WorkloadContext(mesh, recorder, self.outside, rng, PACE, _NODES, self.over)
            acting = asyncio.gather(*(workload.run(context) for workload in self.workloads))
            if killed_after is not None:
                await asyncio.wait([acting], timeout=killed_after)
                acting.cancel()
                await mesh.store.close()
                await mesh.worker.stop(grace=0.0)
                await asyncio.gather(acting, return_exceptions=True)
                self.recorder.note("life.ended", player=name, life=incarnation, how="killed")
                return
            await acting
            async with asyncio.timeout(_DRAIN_S):
                await asyncio.gather(*(workload.drain(context) for workload in self.workloads))
            self.recorder.note("drained", player=name)

    def _install(self) -> None:
        batch = Batch()
        for statement in INSTALL:
            batch.add(statement)
        assert self.memory.run_now(batch.seal()).committed


def run_calmly(folder: Path, *workloads: Workload, seconds: float = 40.0, seed: int = 1) -> History:
    """The history of a run."""

    async def run() -> History:
        return await Instrument(folder, workloads, seed).run(seconds)

    return virtual_time.run(run())
