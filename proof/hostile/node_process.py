"""A node under attack: honest work, baits, and an observer of its event loop.

`python -m proof.hostile.node_process SPEC`, with the settings in the environment. It is ordered about as the
processes of chaos are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from proof.crashes import CrashHandler
from proof.history import Recorder
from proof.hostile.good_work import GoodWork
from proof.hostile.lag import watch_loop
from proof.hostile.writer import BAIT, GOOD
from vox_mesh import Mesh, MeshError, load_settings
from vox_mesh.http.server import NodeServer
from vox_mesh.node import MeshNode

_SHOWN: Final = 3_000


def _note_unexpected(recorder: Recorder, where: str, error: BaseException) -> None:
    trace = "".join(traceback.format_exception(error))[-_SHOWN:]
    recorder.note("unexpected", player=recorder.who, where=where, error=repr(error)[:500], trace=trace)


class _Process:
    def __init__(self, mesh: MeshNode, spec: ProcessSpec, recorder: Recorder) -> None:
        self._recorder = recorder
        self._over = asyncio.Event()
        rng = random.Random(f"{spec.seed} {spec.who} {spec.incarnation}")
        self._work = GoodWork(mesh, recorder, spec.nodes, rng)
        self._who = spec.who
        self._tasks: list[asyncio.Task[None]] = []

    async def follow_orders(self) -> None:
        """Work until the order to leave."""
        work = self._work
        self._begin("loop", partial(watch_loop, self._recorder))
        await work.start_worker()
        self._begin("good work", partial(work.run, self._over))
        self._begin("inbox", partial(work.receive, f"{GOOD}-{self._who}"))
        self._begin("bait", partial(work.receive, BAIT))
        self._begin("look", work.look)
        async for order in orders():
            match order["do"]:
                case "over":
                    self._over.set()
                    report(OVER)
                case "drain":
                    self._begin("drain", self._drain)
                case "leave":
                    break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drain(self) -> None:
        await self._work.drain()
        report(DRAINED)

    def _begin(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._noting(name, part), name=name))

    async def _noting(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except MeshError as error:
            self._recorder.note("stumbled", where=name, error=error.line)
        except Exception as error:
            _note_unexpected(self._recorder, name, error)


async def _end_if_broken(mesh: MeshNode, recorder: Recorder) -> None:
    """End if the node may not go on, as when its incarnation is superseded."""
    error = await mesh.broken()
    recorder.note("broken", error=error.line)
    os._exit(EXIT_REFUSED)


def routes_of(mesh: MeshNode) -> list[tuple[str, str]]:
    """Return the method and path of every route that the node serves."""
    server: Any = vars(mesh)["_server"]
    assert isinstance(server, NodeServer)
    return server.service.routes


async def _open_and_run(spec: ProcessSpec) -> None:
    path = Path(spec.folder) / f"{spec.who}-{spec.incarnation}.jsonl"
    recorder = Recorder(spec.who, spec.incarnation, time.monotonic, append_events_to(path))
    logging.getLogger().addHandler(CrashHandler(partial(_note_unexpected, recorder)))
    async with Mesh.open(load_settings(_env_file=None)) as mesh:
        breaking = asyncio.create_task(_end_if_broken(mesh, recorder))
        recorder.note("up")
        recorder.note("routes", routes=routes_of(mesh))
        report(UP)
        await _Process(mesh, spec, recorder).follow_orders()
        breaking.cancel()


def main() -> None:
    """Run until ordered to leave."""
    run_process(_open_and_run)


if __name__ == "__main__":
    main()
