"""`vox-mesh up`: a node's process starts, works until it is stopped, and leaves the mesh."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from vox_mesh.cli.command_server.process import command_server_of
from vox_mesh.cli.node.served_scopes import open_nodes
from vox_mesh.cli.node.shutdown import ShutdownWatchdog
from vox_mesh.cli.node.traces import set_up_traces, shut_down
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.logs import set_log_node, set_up_logs
from vox_mesh.cli.support.options import grace_option, handlers_option
from vox_mesh.cli.support.session import refuse_node
from vox_mesh.jobs.worker.handlers import HandlerSet, load_handlers
from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.model.base.backends import Backend
from vox_mesh.node import MeshNode
from vox_mesh.runtime import loop
from vox_mesh.runtime.agents import agent_kinds
from vox_mesh.runtime.exec_policy import check_exec_settings
from vox_mesh.runtime.scopes import settings_of_scopes
from vox_mesh.settings import EXAMPLES, Settings, load_process_settings, load_settings, variable_of
from vox_mesh.settings.discovery import no_mesh
from vox_mesh.settings.process import deny_inspection

_log = logging.getLogger(__name__)

_WORKER: Final = "worker"
_THREADS_S: Final = 1.0
"""How long threads may run after everything else has ended."""

_GC_THRESHOLD: Final = 20_000
"""Lower than that of commands: garbage of a node must not pile up."""

_MICROSECONDS: Final = 1_000_000
_KEEPALIVES: Final = 3
"""Keepalives per watchdog timeout of the service manager."""


class Work(NamedTuple):
    """The jobs of a node: handlers, concurrency, grace period at shutdown; all kinds by default."""

    handlers: HandlerSet
    concurrency: int
    grace_s: float
    kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    async def start(self, worker: Worker) -> None:
        """Start the worker of the node."""
        await worker.start(concurrency=self.concurrency, kinds=self.kinds, tags=self.tags)


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
        scopes: Sequence[Settings] = (),
    ) -> None:
        """`scopes`: the settings of each scope, in place of `settings`, for a process that serves several."""
        self._settings = settings
        self._scopes = tuple(scopes) or (settings,)
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
            async with open_nodes(self._scopes) as meshes:
                set_log_node(meshes[0].identity.node_id)
                set_up_traces(self._settings, meshes[0].identity.node_id)
                if self._work is not None:
                    for mesh in meshes:
                        await self._start_work(mesh, self._work)
                opening = None
                gc.set_threshold(_GC_THRESHOLD)
                gc.freeze()  # else each full collection looks at all that was loaded, and holds the loop
                self._report_ready(meshes)
                if len(meshes) == 1:
                    self._start_command_server(meshes[0])
                await self._wait_for_end(meshes)
                self._manager.notify_stopping()
                for mesh in meshes:
                    mesh.begin_to_leave()
                await asyncio.gather(*(mesh.supervisor.stop(_WORKER) for mesh in meshes))
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
                await work.start(worker)
            try:
                await worker.broken()
            finally:
                await worker.stop(work.grace_s)

        mesh.health.is_beginning = True
        await work.start(worker)
        mesh.health.is_beginning, mesh.health.is_to_work = False, True
        mesh.supervisor.start(_WORKER, run)
        _log.info(
            "worker started: node_id=%s kinds=%s concurrency=%d",
            *(mesh.identity.node_id, ",".join(worker.kinds), work.concurrency),
        )

    def _report_ready(self, meshes: Sequence[MeshNode]) -> None:
        for mesh in meshes:
            scope = f" scope={mesh.store.mesh_id[0]}" if len(meshes) > 1 else ""
            url = mesh.presence.activity.control_addr or "none"
            status = (
                f"node up: node_id={mesh.identity.node_id}{scope} home={mesh.store.backend.value} url={url}"
            )
            _log.info("%s", status)
        self._manager.notify_ready(status if len(meshes) == 1 else f"node up: scopes={len(meshes)}")
        meshes[0].supervisor.start("service-manager", self._manager.send_keepalives)

    def _start_command_server(self, mesh: MeshNode) -> None:
        server = None if self._until_idle else command_server_of(self._settings, mesh.store.slot_name)
        if server is not None:
            mesh.supervisor.start("command-server", server.run)

    async def _wait_for_end(self, meshes: Sequence[MeshNode]) -> None:
        """Wait until the node is stopped or idle. Raises what it can't recover from."""
        stopped = asyncio.create_task(self._stopping.wait(), name="vox-mesh-stopped")
        broken = {asyncio.create_task(mesh.broken(), name="vox-mesh-broken") for mesh in meshes}
        reasons: list[asyncio.Task[Any]] = [stopped, *broken]
        if self._until_idle:
            reasons.append(asyncio.create_task(self._wait_until_all_idle(meshes), name="vox-mesh-idle"))
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if stopped not in done:
                for each in done - broken:
                    each.result()
                for failed in done & broken:
                    raise failed.result()
        finally:
            for each in reasons:
                each.cancel()
        if self._work is not None:
            _log.info(
                "draining: %d jobs running, unfinished ones are released after the grace period",
                sum(mesh.worker.running_count for mesh in meshes),
            )

    async def _wait_until_all_idle(self, meshes: Sequence[MeshNode]) -> None:
        await asyncio.gather(*map(self._wait_until_idle, meshes))

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


_LEAVING_S: Final = 5.5
"""How long leaving may take after the grace period: with the default one, a node ends within 10 s."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _settings_options(function: Function) -> Function:
    """Add an option for each setting but secrets: every user of a machine can read command lines."""
    for name, field in reversed(Settings.model_fields.items()):
        if "Secret" in str(field.annotation):
            continue
        variable = variable_of(name)
        option = name.replace("_", "-")
        help_text = f"Value of {variable}, such as {EXAMPLES[variable]}."
        if field.annotation is bool:
            add = click.option(f"--{option}/--no-{option}", name, default=None, help=f"Value of {variable}.")
        else:
            add = click.option(f"--{option}", name, metavar="VALUE", help=help_text)
        function = add(function)
    return function


@click.command()
@handlers_option
@click.option("--no-worker", is_flag=True, help="Claim no jobs, whatever the settings are.")
@grace_option("4s")
@click.option("--once", is_flag=True, help="Do the pending work and exit.")
@click.option("--scope", "scopes", multiple=True, metavar="NAME", help="Scope to serve; may be repeated.")
@_settings_options
def up(
    names: tuple[str, ...],
    no_worker: bool,
    grace: float,
    once: bool,
    scopes: tuple[str, ...],
    **options: Any,
) -> int:
    """Run a node of the mesh until SIGINT or SIGTERM.

    A node sends heartbeats, expires leases, delivers messages and serves HTTP. It claims jobs if it has
    handlers, or with --worker-exec or --worker-agents. A part that crashes is restarted. On a signal it
    releases its jobs and locks, leaves the mesh and exits with 0 within 10 s; a second one ends it at once.

    Every setting is also an option, which overrides its variable; secrets are variables only.

    With --scope it serves one or several scopes of VOX_DB_URLS: each has its own database, home and port.

    \b
    Example:
      vox-mesh up --enabled --node-id builder-1 --handlers my_handlers:handlers
      vox-mesh up --scope west --scope east
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    served: list[Settings] = []
    if scopes:
        served = settings_of_scopes(load_process_settings(**chosen), scopes)
    settings = served[0] if served else load_settings(**chosen)
    refuse_node(settings, "up")
    set_up_logs(settings.log_format)
    if settings.backend is Backend.MEMORY:
        if "enabled" not in settings.model_fields_set:
            raise no_mesh("vox-mesh up")
        _log.warning(
            "memory backend: this node shares nothing; set VOX_MESH_ENABLED=1 or run `vox-mesh init` to share"
        )
    work = None if no_worker else _work(settings, load_handlers(names), grace)
    if no_worker and names:
        raise click.UsageError("--handlers and --no-worker can't be combined")
    return loop.run(NodeRun(settings, work, grace + _LEAVING_S, once=once, scopes=served).run())


def _work(settings: Settings, handlers: HandlerSet, grace_s: float) -> Work | None:
    check_exec_settings(settings)
    if not handlers.patterns and not settings.worker_exec and not agent_kinds(settings):
        return None
    return Work(handlers, settings.worker_concurrency, grace_s)
