"""`vox-mesh worker run`: a node that works on jobs until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

import click

from vox_mesh.cli.exits import KILLED, ExitCode
from vox_mesh.cli.options import seconds
from vox_mesh.cli.signals import ENDING
from vox_mesh.cli.start import start_shared
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec_policy import ExecPolicy
from vox_mesh.jobs.handlers import HandlerSet
from vox_mesh.jobs.loading import load_handlers
from vox_mesh.jobs.worker import MAX_CONCURRENCY, Worker
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs import EXEC
from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

_LEAVING_S: Final = 8.0
"""How long commands that are stopped, and what is to be said of all, may take after the grace."""

_THREADS_S: Final = 1.0
"""How long threads may go on when all else has ended."""

_CUT_OFF: Final = (
    b"vox-mesh: not all work could be given back in time; it comes again when its leases are over\n"
)


def _programs(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The programs of all options as VOX_WORKER_EXEC_ALLOW has them."""
    programs = [each.strip() for text in given for each in text.split(",")]
    try:
        ExecPolicy(frozenset(programs))
    except BadSettings as error:
        raise click.BadParameter(str(error).partition(": ")[2], context, option) from None
    return ",".join(programs) or None


@click.command()
@click.option(
    "--handlers",
    "names",
    metavar="MODULE:OBJECT",
    multiple=True,
    help="A HandlerSet, or a function that registers handlers in the one it is given; repeatable.",
)
@click.option("--kinds", "kinds", metavar="KIND", multiple=True, help="Only these kinds; repeatable.")
@click.option("--exec", "runs_commands", is_flag=True, help="Run commands, too, as VOX_WORKER_EXEC=1.")
@click.option(
    "--exec-allow",
    "programs",
    metavar="PROGRAM",
    multiple=True,
    callback=_programs,
    help="Run commands of this program only: a name or an absolute path; repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    help="So many jobs at a time; by default VOX_WORKER_CONCURRENCY.",
)
@click.option(
    "--grace",
    type=seconds,
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="How long jobs in hand may go on when it is to stop.",
)
@click.option("--until-idle", is_flag=True, help="End when no job of its kinds is left to be done.")
def run(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    runs_commands: bool,
    programs: str | None,
    concurrency: int | None,
    grace: float,
    until_idle: bool,
) -> int:
    """Work on jobs as a node of the mesh, until SIGINT or SIGTERM.

    Then it takes no more, finishes what it has in hand within the grace or gives it back, and leaves with 0.
    A second signal ends it at once, with 128 and the signal: what it had in hand comes again when its leases
    are over. However it ends, no process of a command outlives it.

    Modules are also looked for in this folder.

    \b
    Example:
      vox-mesh worker run --handlers my_handlers:handlers --kinds 'cortex.extract.*' --concurrency 4
    """
    settings = start_shared("worker run")
    may_exec = (runs_commands or settings.worker_exec) and (not kinds or EXEC in kinds)
    if not may_exec and (programs is not None or EXEC in kinds):
        raise click.UsageError("commands are run with --exec, and if --kinds names others, with --kinds exec")
    handlers = load_handlers(names)
    if kinds:
        handlers.only(each for each in kinds if each != EXEC)
    if not handlers.patterns and not may_exec:
        raise click.UsageError("there is nothing to work on: give --handlers, --exec or both")
    chosen = {"worker_exec": may_exec, "worker_exec_allow": programs or settings.worker_exec_allow}
    settings = settings.model_copy(update=chosen)
    ExecPolicy.parsed(settings.worker_exec_allow)  # said before anything is begun
    worker = _Run(settings, handlers, concurrency or settings.worker_concurrency, grace, until_idle)
    return asyncio.run(worker.run())


class _Run:
    """The life of a worker's process."""

    def __init__(
        self, settings: Settings, handlers: HandlerSet, concurrency: int, grace: float, until_idle: bool
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._concurrency = concurrency
        self._grace = grace
        self._until_idle = until_idle
        self._is_to_stop = asyncio.Event()

    async def run(self) -> int:
        """Work until it is told to stop; the exit code."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        opening: asyncio.Task[int] | None = task

        def stop() -> None:
            self._is_to_stop.set()
            if opening is not None:
                opening.cancel()

        watch = _Watch(lambda: loop.call_soon_threadsafe(stop), self._grace + _LEAVING_S)
        code: int = ExitCode.DONE
        try:
            async with Mesh.open(self._settings) as mesh:
                worker = mesh.worker
                worker.handlers = self._handlers
                async with worker.running(concurrency=self._concurrency, grace=self._grace):
                    opening = None
                    kinds, most = ", ".join(worker.kinds), self._concurrency
                    _log.info("%s works on %s, up to %d at a time", mesh.identity.node_id, kinds, most)
                    code = await self._until_over(worker)
        except asyncio.CancelledError:
            if not self._is_to_stop.is_set():
                raise
            task.uncancel()
        watch.end_within(_THREADS_S, code)
        return code

    async def _until_over(self, worker: Worker) -> int:
        """Wait until it is to stop, or can't go on; the exit code."""
        told = asyncio.create_task(self._is_to_stop.wait(), name="vox-mesh-told-to-stop")
        broken = asyncio.create_task(worker.broken(), name="vox-mesh-worker-broken")
        reasons: list[asyncio.Task[Any]] = [told, broken]
        if self._until_idle:
            reasons.append(asyncio.create_task(worker.idle(), name="vox-mesh-worker-idle"))
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if broken in done and not told.done():
                broken.result()
                return ExitCode.NO
        finally:
            for each in reasons:
                each.cancel()
        _log.info("it takes no more jobs; of %d in hand, what takes longer goes back", worker.in_hand)
        return ExitCode.DONE


class _LastCall(NamedTuple):
    """When the process ends if it has not by itself, with which code and which words."""

    at: float
    code: int
    words: bytes = b""

    def answer(self) -> NoReturn:
        """End it."""
        with suppress(OSError):
            os.write(2, self.words)
        os._exit(self.code)


class _Watch:
    """Hears signals, and ends the process if it does not end by itself.

    All of that is done in a thread: a handler may block the loop, and with it the one thread that Python
    tells of signals.
    """

    def __init__(self, tell: Callable[[], object], leaving_s: float) -> None:
        self._tell = tell
        self._leaving_s = leaving_s
        self._is_told = False
        self._last_call: _LastCall | None = None
        self._heard, self._hears = os.pipe()
        os.set_blocking(self._hears, False)
        self._numbers = {each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
        for number in self._numbers:  # others are ignored as nohup, and shells in the background, want
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._hears, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="vox-mesh-watch", daemon=True).start()

    def end_within(self, seconds: float, code: int) -> None:
        """It may take so long from now on, and not what it might before."""
        self._last_call = _LastCall(time.monotonic() + seconds, code)
        os.write(self._hears, b"\0")

    def _watch(self) -> None:
        while True:
            last_call = self._last_call
            left_s = None if last_call is None else max(0.0, last_call.at - time.monotonic())
            if select.select([self._heard], [], [], left_s)[0]:
                for number in os.read(self._heard, 64):
                    if number in self._numbers:
                        self._signalled(number)
            elif last_call is not None and last_call is self._last_call:
                last_call.answer()

    def _signalled(self, number: int) -> None:
        if self._is_told:
            os._exit(KILLED + number)
        self._is_told = True
        if self._last_call is None:
            self._last_call = _LastCall(time.monotonic() + self._leaving_s, ExitCode.NO, _CUT_OFF)
        with suppress(RuntimeError):  # the loop has ended by itself
            self._tell()
