"""What a workload gets: a node of the mesh, and its surroundings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from proof.history import Recorder
from proof.outside import Outside
from vox_mesh.node import MeshNode


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast everything runs. Long times are multiples of short ones, as in production."""

    tick_s: float
    """The interval of heartbeats."""
    ttl_s: float
    """Of locks, and of leases of jobs and messages."""
    rest_s: float
    """Between two operations of one workload, on average."""

    def slow_down(self, times: float) -> Pace:
        """Return a pace slower by this factor."""
        return Pace(self.tick_s * times, self.ttl_s * times, self.rest_s * times)


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """One incarnation of one node."""

    mesh: MeshNode
    recorder: Recorder
    outside: Outside
    rng: random.Random
    pace: Pace
    nodes: tuple[str, ...]
    """The names of all nodes, including this one."""
    over: asyncio.Event
    """Set when no new operation may start."""

    @property
    def who(self) -> str:
        """The name of this node."""
        return self.recorder.who

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other nodes."""
        return tuple(each for each in self.nodes if each != self.who)

    async def rest(self, seconds: float) -> None:
        """Wait this long, or until `over`."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass

    async def rounds(self) -> AsyncIterator[None]:
        """Yield once for each operation, with a pause after it, until `over`."""
        while not self.over.is_set():
            yield
            await self.rest(self.pace.rest_s * 2 * self.rng.random())


class Workload(Protocol):
    """Operations that nodes repeat all the time."""

    @property
    def name(self) -> str:
        """Its name."""

    async def run(self, context: WorkloadContext, /) -> None:
        """Run until `context.over`. It may be cancelled at any time; the next incarnation runs it again."""

    async def drain(self, context: WorkloadContext, /) -> None:
        """After all faults have healed: complete all pending work."""


WorkloadFunction = Callable[[WorkloadContext], Coroutine[Any, Any, None]]


async def nothing(_context: WorkloadContext) -> None:
    """Do nothing: for a workload without pending work."""


@dataclass(frozen=True, slots=True)
class FunctionWorkload:
    """A workload made of two functions."""

    name: str
    run: WorkloadFunction
    drain: WorkloadFunction = nothing
