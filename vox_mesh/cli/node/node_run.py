"""The run of a node's process: it starts, works until it is stopped, and leaves the mesh."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any, Final, NamedTuple

from vox_mesh.cli.node.shutdown import ShutdownWatchdog
from vox_mesh.cli.node.traces import set_up_traces, shut_down
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.logs import set_log_node
from vox_mesh.jobs.worker.handlers import HandlerSet
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.settings import Settings
from vox_mesh.settings.process import deny_inspection

_log = logging.getLogger(__name__)

_WORKER: Final = "worker"
_THREADS_S: Final = 1.0
"""How long threads may run after everything else has ended."""

_MICROSECONDS: Final = 1_000_000
_KEEPALIVES: Final = 3
"""Keepalives per watchdog timeout of the service manager."""


class Work(NamedTuple):
    """The jobs of a node: handlers, concurrency, grace period at shutdown; all kinds by default."""

    handlers: HandlerSet
    concurrency: int
    grace_s: float
    kinds: tuple[str, ...] = ()


class NodeRun:
    """One run of a node. It ends within `leaving_s` after the stop signal, even if a part hangs."""

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
        self._stopping = asyncio.Event()
        self._manager = ServiceManager()

    async def run(self) -> int:
        """Run the node until it is stopped and return the exit code. Raises what prevents its start."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        opening: asyncio.Task[int] | None = task

        def stop() -> None:
            self._stopping.set()
            if opening is not None:
                opening.cancel()

        deny_inspection()  # its key is in its memory
        watch = ShutdownWatchdog(lambda: loop.call_soon_threadsafe(stop), self._leaving_s)
        try:
            async with Mesh.open(self._settings) as mesh:
                set_log_node(mesh.identity.node_id)
                set_up_traces(self._settings, mesh.identity.node_id)
                if self._work is not None:
                    await self._start_work(mesh, self._work)
                opening = None
                self._report_ready(mesh)
                await self._wait_for_end(mesh)
                self._manager.notify_stopping()
                mesh.begin_to_leave()
                await mesh.supervisor.stop(_WORKER)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            task.uncancel()
        finally:
            shut_down()
            watch.end_within(_THREADS_S, ExitCode.NO)
        watch.end_within(_THREADS_S, ExitCode.DONE)
        return ExitCode.DONE

    async def _start_work(self, mesh: MeshNode, work: Work) -> None:
        """Start the worker. Raises what prevents its start; later failures restart it."""
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
        _log.info(
            "worker started: node_id=%s kinds=%s concurrency=%d",
            *(mesh.identity.node_id, ",".join(worker.kinds), work.concurrency),
        )

    def _report_ready(self, mesh: MeshNode) -> None:
        url = mesh.presence.activity.control_addr or "none"
        status = f"node up: node_id={mesh.identity.node_id} home={mesh.store.home.value} url={url}"
        _log.info("%s", status)
        self._manager.notify_ready(status)
        mesh.supervisor.start("service-manager", self._manager.send_keepalives)

    async def _wait_for_end(self, mesh: MeshNode) -> None:
        """Wait until the node is stopped or idle. Raises what it can't recover from."""
        stopped = asyncio.create_task(self._stopping.wait(), name="vox-mesh-stopped")
        broken = asyncio.create_task(mesh.broken(), name="vox-mesh-broken")
        reasons: list[asyncio.Task[Any]] = [stopped, broken]
        if self._until_idle:
            reasons.append(asyncio.create_task(self._wait_until_idle(mesh), name="vox-mesh-idle"))
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if stopped not in done:
                for each in done - {broken}:
                    each.result()
                if broken in done:
                    raise broken.result()
        finally:
            for each in reasons:
                each.cancel()
        if self._work is not None:
            _log.info(
                "draining: %d jobs running, unfinished ones are released after the grace period",
                mesh.worker.running_count,
            )

    async def _wait_until_idle(self, mesh: MeshNode) -> None:
        """Wait until there is nothing left to do for now."""
        if self._once:
            await mesh.run_once()
            await mesh.catch_up()
        if self._work is not None:
            await mesh.worker.idle()


# --- systemd -------------------------------------------------------------------------------------


class ServiceManager:
    """Notifies systemd through the socket in NOTIFY_SOCKET; does nothing if systemd did not start us."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_failing = False

    def notify_ready(self, status: str) -> None:
        """Report that the node is ready."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def notify_stopping(self) -> None:
        """Report that the node is stopping."""
        self._send("STOPPING=1\nSTATUS=draining")

    @property
    def interval_s(self) -> float | None:
        """The seconds between keepalives; `None` if this process need not send any."""
        limit, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if not self._address or not limit.isdigit() or not int(limit) or pid not in ("", str(os.getpid())):
            return None
        return int(limit) / _MICROSECONDS / _KEEPALIVES

    async def send_keepalives(self) -> None:
        """Send keepalives until cancelled: an event loop that hangs sends none."""
        interval_s = self.interval_s
        while interval_s is not None:
            self._send("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.connect(self._address)
                manager.send(message.encode())
        except OSError as error:
            if not self._is_failing:
                _log.warning("service manager not notified: %s", error.strerror or error)
            self._is_failing = True


def _line(text: str) -> str:
    return " ".join(text.split())
