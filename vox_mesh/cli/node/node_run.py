"""The life of a node's process: it begins, does its work until it is told to stop, and leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from vox_mesh.cli.node.logs import name_node
from vox_mesh.cli.node.shutdown import ShutdownWatchdog
from vox_mesh.cli.node.systemd import ServiceManager
from vox_mesh.cli.node.traces import set_up_traces, shut_down
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.jobs.worker.handlers import HandlerSet
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

_WORKER: Final = "worker"
_THREADS_S: Final = 1.0
"""How long threads may go on when all else has ended."""


class Work(NamedTuple):
    """What a node works on: how many at a time, and how long they may go on when it is to stop."""

    handlers: HandlerSet
    concurrency: int
    grace_s: float
    kinds: tuple[str, ...] = ()


class NodeRun:
    """One run of a node. `leaving_s` after it was told to stop it has ended, whatever hangs."""

    def __init__(
        self,
        settings: Settings,
        work: Work | None,
        leaving_s: float,
        *,
        until_idle: bool = False,
        once: bool = False,
    ) -> None:
        self._settings = settings
        self._work = work
        self._leaving_s = leaving_s
        self._until_idle = until_idle or once
        self._once = once
        self._is_to_stop = asyncio.Event()
        self._manager = ServiceManager()

    async def run(self) -> int:
        """Be a node until it is told to stop; the exit code. What keeps it from being one is raised."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        opening: asyncio.Task[int] | None = task

        def stop() -> None:
            self._is_to_stop.set()
            if opening is not None:
                opening.cancel()

        watch = ShutdownWatchdog(lambda: loop.call_soon_threadsafe(stop), self._leaving_s)
        try:
            async with Mesh.open(self._settings) as mesh:
                name_node(mesh.identity.node_id)
                set_up_traces(self._settings, mesh.identity.node_id)
                if self._work is not None:
                    await self._begin_work(mesh, self._work)
                opening = None
                self._say_ready(mesh)
                await self._until_over(mesh)
                self._manager.stopping()
                mesh.begin_to_leave()
                await mesh.supervisor.stop(_WORKER)
        except asyncio.CancelledError:
            if not self._is_to_stop.is_set():
                raise
            task.uncancel()
        finally:
            shut_down()
            watch.end_within(_THREADS_S, ExitCode.NO)
        watch.end_within(_THREADS_S, ExitCode.DONE)
        return ExitCode.DONE

    async def _begin_work(self, mesh: MeshNode, work: Work) -> None:
        """Have the node take jobs from now on; what keeps it from that at the start is raised."""
        worker = mesh.worker
        worker.handlers.include(work.handlers)

        async def run() -> None:
            if not worker.is_running:
                await worker.start(concurrency=work.concurrency, kinds=work.kinds)
            try:
                await worker.broken()
            finally:
                await worker.stop(work.grace_s)

        mesh.health.is_beginning = True
        await worker.start(concurrency=work.concurrency, kinds=work.kinds)
        mesh.health.is_beginning, mesh.health.is_to_work = False, True
        mesh.supervisor.start(_WORKER, run)
        kinds = ", ".join(worker.kinds)
        _log.info("%s works on %s, up to %d at a time", mesh.identity.node_id, kinds, work.concurrency)

    def _say_ready(self, mesh: MeshNode) -> None:
        where = mesh.presence.activity.control_addr or "no HTTP"
        status = f"{mesh.identity.node_id} is up ({mesh.store.home.value}, {where})"
        _log.info("%s", status)
        self._manager.ready(status)
        mesh.supervisor.start("service-manager", self._manager.keep_telling)

    async def _until_over(self, mesh: MeshNode) -> None:
        """Wait until it is to stop; what it can't go on after is raised."""
        told = asyncio.create_task(self._is_to_stop.wait(), name="vox-mesh-told-to-stop")
        broken = asyncio.create_task(mesh.broken(), name="vox-mesh-broken")
        reasons: list[asyncio.Task[Any]] = [told, broken]
        if self._until_idle:
            reasons.append(asyncio.create_task(self._done(mesh), name="vox-mesh-done"))
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if told not in done:
                for each in done - {broken}:
                    each.result()
                if broken in done:
                    raise broken.result()
        finally:
            for each in reasons:
                each.cancel()
        if self._work is not None:
            running = mesh.worker.running_count
            _log.info("it takes no more jobs; of %d in hand, what takes longer goes back", running)

    async def _done(self, mesh: MeshNode) -> None:
        """Wait until there is nothing left to do for now."""
        if self._once:
            await mesh.run_once()
            await mesh.catch_up()
        if self._work is not None:
            await mesh.worker.idle()
