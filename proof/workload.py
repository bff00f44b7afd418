"""What a workload finds when it begins: a node of the mesh, and the world around it."""

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
    """How quick everything is. Long times are multiples of the short ones, as in earnest."""

    tick_s: float
    """Of the nodes' hearts."""
    ttl_s: float
    """Of locks, and of leases of jobs and messages."""
    rest_s: float
    """Between two deeds of one workload, on average."""

    def slow_down(self, times: float) -> Pace:
        """So many times as slow."""
        return Pace(self.tick_s * times, self.ttl_s * times, self.rest_s * times)


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """One life of one player."""

    mesh: MeshNode
    recorder: Recorder
    outside: Outside
    rng: random.Random
    pace: Pace
    nodes: tuple[str, ...]
    """The names of all, this one among them."""
    over: asyncio.Event
    """Set when no new work is to be begun."""

    @property
    def who(self) -> str:
        """The name of this player."""
        return self.recorder.who

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other players."""
        return tuple(each for each in self.nodes if each != self.who)

    async def rest(self, seconds: float) -> None:
        """Wait so long, or until all is over."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass

    async def rounds(self) -> AsyncIterator[None]:
        """A turn for each deed, with a rest after it, until all is over."""
        while not self.over.is_set():
            yield
            await self.rest(self.pace.rest_s * 2 * self.rng.random())


class Workload(Protocol):
    """Something that players do all the time."""

    @property
    def name(self) -> str:
        """What it is called."""

    async def run(self, context: WorkloadContext, /) -> None:
        """Do it until `context.over`. It may be ended at any moment, and begun again in another life."""

    async def drain(self, context: WorkloadContext, /) -> None:
        """When all has healed: see what was begun to its end."""


WorkloadFunction = Callable[[WorkloadContext], Coroutine[Any, Any, None]]


async def nothing(_context: WorkloadContext) -> None:
    """For a workload that leaves nothing behind."""


@dataclass(frozen=True, slots=True)
class FunctionWorkload:
    """A workload made of two functions."""

    name: str
    run: WorkloadFunction
    drain: WorkloadFunction = nothing
