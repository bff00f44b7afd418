"""A small stage: players in one virtual loop on one memory, some of whom are killed and begin again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proof.history import Event, History, Recorder
from proof.monitor import Monitor
from proof.moves import INSTALL
from proof.outside import MemoryOutside
from proof.reading import Ask, read_finals
from proof.scene import Pace, Scene, Workload
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
_PLAYERS: Final = ("ada", "bob", "cyd")
_DRAIN_S: Final = 300.0


@dataclass
class Stage:
    """One run."""

    folder: Path
    parts: Sequence[Workload]
    seed: int = 1
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.memory = SharedMemory(virtual_time.now_ms)
        chance = random.Random(self.seed)
        self.around = Dependencies(
            *(virtual_time.now_ms, loop.time, chance.random, chance.randbytes),
            memory=self.memory,
            elapsed=loop.time,
        )
        self.outside = MemoryOutside()
        self.stage = Recorder("stage", 1, loop.time, self.events.append)

    async def ask(self, statement: str) -> list[dict[str, Any]]:
        """Ask the database itself."""
        return [row.as_dict() for row in await self.memory.query(Statement(statement))]

    async def play(self, seconds: float) -> History:
        """Play for so long, then have all come to its end, and read it."""
        ask: Ask = self.ask
        (self.folder / "tempo.yaml").write_text(tempo_of(PACE))
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._end)
        monitor = Monitor(ask, Recorder("monitor", 1, loop.time, self.events.append))
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(monitor.run(every_s=PACE.tick_s))
            async with asyncio.TaskGroup() as players:
                for name in _PLAYERS:
                    players.create_task(self._player(name, seconds))
            watching.cancel()
        await read_finals(ask, self.stage)
        await self.memory.drop()
        return History(self.events)

    def _end(self) -> None:
        self.stage.note("healed")
        self.over.set()

    async def _player(self, name: str, seconds: float) -> None:
        """The last of the players dies in the middle, and begins again."""
        if name == _PLAYERS[-1]:
            await self._life(name, 1, killed_after=seconds / 4)
            await self._life(name, 2)
        else:
            await self._life(name, 1)

    async def _life(self, name: str, life: int, killed_after: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        settings = IsolatedSettings(
            node_id=name,
            home_dir=self.folder / name,
            http=False,
            tick=round(PACE.tick_s),
            tempo_policy=self.folder / "tempo.yaml",
        )
        recorder = Recorder(name, life, loop.time, self.events.append)
        async with AsyncExitStack() as ending:
            while True:
                with suppress(NodeInUse):  # an earlier life of it is not known to be dead yet
                    mesh = await ending.enter_async_context(Mesh.open(settings, self.around))
                    break
                await asyncio.sleep(PACE.tick_s)
            self._install()
            self.stage.note("life.began", player=name, life=life, node_id=name)
            recorder.note("up")
            chance = random.Random(f"{self.seed} {name} {life}")
            scene = Scene(mesh, recorder, self.outside, chance, PACE, _PLAYERS, self.over)
            acting = asyncio.gather(*(part.act(scene) for part in self.parts))
            if killed_after is not None:
                await asyncio.wait([acting], timeout=killed_after)
                acting.cancel()
                await mesh.store.close()
                await mesh.worker.stop(grace=0.0)
                await asyncio.gather(acting, return_exceptions=True)
                self.stage.note("life.ended", player=name, life=life, how="killed")
                return
            await acting
            async with asyncio.timeout(_DRAIN_S):
                await asyncio.gather(*(part.drain(scene) for part in self.parts))
            self.stage.note("drained", player=name)

    def _install(self) -> None:
        batch = Batch()
        for statement in INSTALL:
            batch.add(statement)
        assert self.memory.run_now(batch.seal()).committed


def played(folder: Path, *parts: Workload, seconds: float = 40.0, seed: int = 1) -> History:
    """The history of a run."""

    async def run() -> History:
        return await Stage(folder, parts, seed).play(seconds)

    return virtual_time.run(run())
