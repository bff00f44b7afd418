"""One life of one player: a node in a house of its own, and the workloads that it plays."""

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
from proof.scene import Act, Pace, Scene, Workload
from proof.simulate.faults import Clock
from proof.simulate.loop import House, SimulatedLoop
from proof.simulate.network import Database, Way
from proof.simulate.relay import TIMEOUT_S, Counter, Courier, outbox_of
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.ulid import UlidSource
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.script import keys_from
from vox_mesh.testing.harness import IsolatedSettings

EPOCH_MS: Final = 1_800_000_000_000 - 30_000
"""What all clocks would show in the beginning, if they were right: half a minute before a full one, when
crons are due."""

REQUEST_S: Final = 3.0
_DEADLINE_S: Final = 8.0
_AGAIN_S: Final = 1.0
_NOWHERE: Final = Path("/nonexistent")
"""Nothing is written to disk."""

_TEMPO: Final = Path(__file__).with_name("tempo.yaml")


@cache
def settings_of(name: str, tick_s: float, *, has_breaker: bool) -> IsolatedSettings:
    """The settings of a player's node."""
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
class Cast:
    """What all lives of a play have in common."""

    loop: SimulatedLoop
    database: Database
    outside: Outside
    workloads: Sequence[Workload]
    players: tuple[str, ...]
    pace: Pace
    over: asyncio.Event
    draining: asyncio.Event
    counter_of: Callable[[str], Counter | None]
    has_breaker: bool


class Life:
    """Begun when it is made."""

    def __init__(self, cast: Cast, recorder: Recorder, clock: Clock, seed: str) -> None:
        self._cast = cast
        self._chance = random.Random(seed)
        self.recorder: Final = recorder
        self.house: Final = House(recorder.who, rate=clock.rate, ahead_s=clock.ahead_s)
        self.skew_ms = clock.skew_ms - round(clock.ahead_s * 1_000)
        self.house.context.run(keys_from, UlidSource(self._wall_ms, self._chance.getrandbits))
        self.line: Final = cast.database.line(self.house, REQUEST_S)
        self.way: Final = Way(cast.loop, self.house, self._chance, TIMEOUT_S)
        self.counter: Counter | None = None
        self._has_heard: Callable[[], bool] = lambda: False
        self.has_acted = asyncio.Event()
        self.is_drained = asyncio.Event()
        self.is_leaving = asyncio.Event()
        self.ended: Final[asyncio.Future[tuple[str, str | None]]] = cast.loop.create_future()
        """How, and with what error. Whoever razes its house says so here."""
        self._acting = len(cast.workloads)
        cast.loop.begin(self.house, self._live()).add_done_callback(self._end)

    @property
    def has_heard(self) -> bool:
        """Whether the database has told its node the time."""
        return self._has_heard()

    def _wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + round(self.house.shows(self._cast.loop.now) * 1_000)

    def _end(self, living: asyncio.Task[MeshError | None]) -> None:
        if self.ended.done():
            return
        if (failure := living.exception()) is not None:
            self._cast.loop.failed(self.house, failure)
            self.ended.set_result(("broke", repr(failure)))
        else:
            error = living.result()
            self.ended.set_result(("left", None) if error is None else ("broke", error.line))

    async def _live(self) -> MeshError | None:
        """Live until it is to leave; why it could not, if so."""
        around = Dependencies(
            self._wall_ms,
            self._cast.loop.time,
            self._chance.random,
            self._chance.randbytes,
            self.line,
            place=self.recorder.who,
            elapsed=self._cast.loop.time,
        )
        settings = settings_of(self.recorder.who, self._cast.pace.tick_s, has_breaker=self._cast.has_breaker)
        try:
            async with Mesh.open(settings, around) as mesh:
                self.line.circuit = lambda: mesh.store.circuit
                self.line.probed = lambda beside: self.recorder.note("probe", beside=beside)
                self.recorder.note("up")
                self._has_heard = lambda: mesh.clock.is_set
                return await self._play(mesh)
        except MeshError as error:  # it could not even begin
            return error

    async def _play(self, mesh: MeshNode) -> MeshError | None:
        cast = self._cast
        outbox = outbox_of(mesh, Courier(self.way, cast.counter_of), cast.loop.time)
        self.counter = Counter(cast.loop, self.house, mesh)
        scene = Scene(mesh, self.recorder, cast.outside, self._chance, cast.pace, cast.players, cast.over)
        playing = asyncio.create_task(self._parts(scene))
        breaking = asyncio.create_task(mesh.broken())
        leaving = asyncio.create_task(self.is_leaving.wait())
        try:
            await asyncio.wait((playing, breaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
                self.is_drained.set()
                await asyncio.wait((breaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            return breaking.result() if breaking.done() else None
        finally:
            self.counter = None
            for task in (playing, breaking, leaving):
                task.cancel()
            await asyncio.gather(playing, breaking, leaving, return_exceptions=True)
            await outbox.close()

    async def _parts(self, scene: Scene) -> None:
        async with asyncio.TaskGroup() as parts:
            for each in self._cast.workloads:
                parts.create_task(self._part(scene, each), name=each.name)

    async def _part(self, scene: Scene, workload: Workload) -> None:
        """Play one workload: until all is over, and then to its end."""
        while not scene.over.is_set():
            await self._through(scene, workload, workload.act)
            await scene.rest(_AGAIN_S)
        self._acting -= 1
        if not self._acting:
            self.has_acted.set()
        await self._cast.draining.wait()
        await self._through(scene, workload, workload.drain)

    async def _through(self, scene: Scene, workload: Workload, act: Act) -> None:
        """An error of the mesh that a workload lets through is no reason to stop."""
        try:
            await act(scene)
        except MeshError as error:
            scene.recorder.note("stumbled", workload=workload.name, error=error.line)
