"""A node process that runs all workloads, and records its operations and observations.

`python -m proof.chaos.workload_client SPEC`, with the settings in the environment. The parent sends orders on
stdin, as lines of JSON; the process reports its state on stdout, and ends when its parent is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import proof.witness  # noqa: F401 - declares the triggers that it finds in the database
from proof.chaos.breaker import WatchedBreaker
from proof.chaos.points import OutsideWithPoints, Point, Points
from proof.chaos.protocol import (
    DRAINED,
    EXIT_REFUSED,
    OVER,
    UP,
    ProcessSpec,
    append_events_to,
    orders,
    report,
    run_process,
)
from proof.chaos.replicas import watch_replicas
from proof.chaos.schedule import PACE
from proof.chaos.storm import storm
from proof.crashes import CrashHandler
from proof.history import Recorder
from proof.outside import FolderOutside
from proof.suite import OPTIONAL_WORKLOADS, WORKLOADS
from proof.workload import Workload, WorkloadContext
from vox_mesh import Mesh, MeshError, load_settings
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.write import breaker

_LAST_OPERATIONS_S: Final = 60.0
"""Operations in progress at the end have deadlines of their own, which are shorter."""
_AGAIN_S: Final = 0.5
_NICE: Final = 5
"""Leave the processor to the parent process: if that is late, it disturbs the schedule."""
_SHOWN: Final = 1_500


class Clock:
    """The wall clock of this node: it can be set wrong, and run too fast or too slowly."""

    def __init__(self) -> None:
        self._offset_ms, self._rate, self._since = 0, 1.0, 0.0

    def set(self, offset_ms: int = 0, rate: float = 1.0) -> None:
        """Set its offset and rate from now on."""
        self._offset_ms, self._rate, self._since = offset_ms, rate, time.monotonic()

    def wall_ms(self) -> int:
        """Return its reading."""
        gained_ms = (time.monotonic() - self._since) * (self._rate - 1) * 1_000
        return time.time_ns() // 1_000_000 + self._offset_ms + int(gained_ms)


def _note_unexpected(recorder: Recorder, where: str, error: BaseException) -> None:
    trace = "".join(traceback.format_exception(error))[-_SHOWN:]
    recorder.note("unexpected", player=recorder.who, where=where, error=repr(error), trace=trace)


class WorkloadClient:
    """One process: it runs workloads until `over`, drains and leaves, or dies in between."""

    def __init__(
        self,
        context: WorkloadContext,
        points: Points,
        clock: Clock,
        workloads: Sequence[Workload] = WORKLOADS,
    ) -> None:
        self._context = context
        self._workloads = workloads
        self._points = points
        self._clock = clock
        self._running = [asyncio.create_task(self._run_workload(each), name=each.name) for each in workloads]
        self._others: set[asyncio.Task[None]] = set()

    async def follow(self, orders: AsyncIterator[dict[str, Any]]) -> None:
        """Follow orders until the one to leave."""
        async for order in orders:
            match order.pop("do"):
                case "over":
                    self._in_background(self._end_running())
                case "drain":
                    self._in_background(self._drain())
                case "storm":
                    self._in_background(storm(self._context, **order))
                case "clock":
                    self._clock.set(**order)
                case "die":
                    self._points.wanted = Point(order["point"])
                case "leave":
                    break
        for task in (*self._running, *self._others):
            task.cancel()
        await asyncio.gather(*self._running, *self._others, return_exceptions=True)

    def _in_background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _run_workload(self, workload: Workload) -> None:
        """Run a workload until `over`; an error of the mesh that it lets through is no reason to stop."""
        while not self._context.over.is_set():
            await self._through(workload, workload.run)
            await self._context.rest(_AGAIN_S)

    async def _through(self, workload: Workload, part: Callable[[WorkloadContext], Awaitable[None]]) -> None:
        try:
            await part(self._context)
        except MeshError as error:
            self._context.recorder.note("stumbled", workload=workload.name, error=error.line)
        except Exception as error:
            _note_unexpected(self._context.recorder, workload.name, error)

    async def _end_running(self) -> None:
        context = self._context
        context.over.set()
        _, late = await asyncio.wait(self._running, timeout=_LAST_OPERATIONS_S)
        for task in late:
            context.recorder.note(
                "unexpected", player=context.who, where=task.get_name(), error="it does not end"
            )
            task.cancel()
        report(OVER)

    async def _drain(self) -> None:
        await asyncio.gather(*(self._through(each, each.drain) for each in self._workloads))
        await self._context.mesh.store.drained()
        report(DRAINED)


async def _end_if_broken(mesh: MeshNode, recorder: Recorder) -> None:
    """End the process if its node breaks: that does not happen in a run without a bug."""
    error = await mesh.broken()
    _note_unexpected(recorder, "the node", error)
    os._exit(EXIT_REFUSED)


def _watch_breakers(recorder: Recorder) -> None:
    """Give circuit breakers a reset timeout that suits a run, and note their probes."""
    watched = partial(WatchedBreaker, probed=lambda count: recorder.note("probe", beside=count))
    setattr(breaker, "Breaker", watched)  # noqa: B010 - a name of that module


def _workloads(spec: ProcessSpec) -> Sequence[Workload]:
    every = (*WORKLOADS, *OPTIONAL_WORKLOADS)
    return [each for each in every if each.name in spec.workloads] if spec.workloads else every


async def _open_and_run(spec: ProcessSpec) -> None:
    recorder = Recorder(
        spec.who,
        spec.incarnation,
        time.monotonic,
        append_events_to(Path(spec.folder) / f"{spec.who}-{spec.incarnation}.jsonl"),
    )
    logging.getLogger().addHandler(CrashHandler(partial(_note_unexpected, recorder)))
    _watch_breakers(recorder)
    watch_replicas(recorder)
    points, clock = Points(), Clock()
    points.install()
    async with Mesh.open(load_settings(_env_file=None), Dependencies(wall_ms=clock.wall_ms)) as mesh:
        recorder.note("up")
        report(UP)
        breaking = asyncio.create_task(_end_if_broken(mesh, recorder))
        context = WorkloadContext(
            mesh,
            recorder,
            OutsideWithPoints(FolderOutside(Path(spec.outside)), points),
            random.Random(f"{spec.seed} {spec.who} {spec.incarnation}"),
            replace(PACE, rest_s=spec.rest_s),
            spec.nodes,
            asyncio.Event(),
        )
        await WorkloadClient(context, points, clock, _workloads(spec)).follow(orders())
        breaking.cancel()


def main() -> None:
    """Run until ordered to leave."""
    os.nice(_NICE)
    run_process(_open_and_run)


if __name__ == "__main__":
    main()
