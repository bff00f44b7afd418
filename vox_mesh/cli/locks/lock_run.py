"""`vox-mesh lock run`: a command that runs under a lock."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.locks.paths import keys_of, literal_option
from vox_mesh.cli.support.exit_codes import KILLED, ExitCode, shell_exit_code
from vox_mesh.cli.support.options import LockOptions, TrailingCommand, lock_options
from vox_mesh.cli.support.session import start_quickly
from vox_mesh.errors import LockLost, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import Lock
from vox_mesh.runtime.locking import hold_lock
from vox_mesh.settings.process import deny_inspection

if TYPE_CHECKING:
    from vox_mesh.jobs.exec.process_group import ProcessGroup
    from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@click.command(cls=TrailingCommand)
@click.argument("keys", nargs=-1, required=True, metavar="KEY... -- COMMAND...")
@lock_options("30s for files, 5m for other keys")
@literal_option
def run(
    keys: tuple[str, ...],
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
    literal: bool,
    command: list[str],
) -> int:
    """Run a command under a lock, and release it afterwards.

    The command gets the keys in VOX_LOCK_KEY (one per line), their fencing token in VOX_LOCK_FENCE and the
    agent in VOX_AGENT_ID. Ends with the command's exit code, or 128 and the signal that killed it; with 127
    if the command is not found, 126 if it can't be run, and 1 if the lock is not acquired or lost.

    The command runs in its own process group, which gets the signals sent to this process. The whole group is
    stopped before the lock is released, when the lock is lost, and if this process is killed.

    \b
    Example:
      vox-mesh lock run file:Cargo.lock --agent coder --wait 1m -- cargo update
    """
    if not command:
        raise click.UsageError("no command given: write it after `--`", click.get_current_context())
    settings = start_quickly("lock run")
    keys = keys_of(keys, settings, literal=literal)
    arguments = LockOptions(keys, agent, ttl, wait, shared, until).arguments(settings)
    return asyncio.run(_UnderLock(settings, arguments, command).run())


class _UnderLock:
    """The run of a command under a lock."""

    def __init__(self, settings: Settings, arguments: dict[str, Any], command: list[str]) -> None:
        self._settings = settings
        self._arguments = arguments
        self._command = command
        self._group: ProcessGroup | None = None
        self._stopped_by: int | None = None
        self._code: int | None = None

    async def run(self) -> int:
        """Acquire the lock, run the command, release the lock; return the exit code."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background shells ignore some
                loop.add_signal_handler(number, self._pass_on, number, task)
        try:
            async with (
                Mesh.open_command(self._settings) as mesh,
                hold_lock(mesh, **self._arguments) as lock,
            ):
                self._code = await self._run(lock)
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            task.uncancel()
            return KILLED + self._stopped_by
        except LockLost:
            raise
        except MeshError as error:
            if self._code is None:
                raise
            _log.warning("lock not released, it expires by itself: %s", error.line)
        assert self._code is not None
        return self._code

    async def _run(self, lock: Lock) -> int:
        # Imported late: no other command of this group starts a process.
        from vox_mesh.cli.support.terminal import Terminal
        from vox_mesh.jobs.exec.process_group import ProcessGroup, Start

        variables = {
            "VOX_LOCK_KEY": "\n".join(lock.keys),
            "VOX_LOCK_FENCE": str(lock.fence_token),
            "VOX_AGENT_ID": lock.holder_agent,
        }
        deny_inspection()  # the key of the node is in this process's memory
        self._group = ProcessGroup(Terminal())
        try:
            return shell_exit_code(await self._group.run(Start(self._command, os.environ | variables)))
        except OSError as error:
            name = self._command[0]
            click.echo(
                f"vox-mesh: command {name} can't be run: {error.strerror}; check its name and PATH", err=True
            )
            return ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.NOT_RUNNABLE
        finally:
            self._group = None

    def _pass_on(self, number: int, task: asyncio.Task[Any]) -> None:
        """Forward a signal to the command; without one, stop."""
        if self._group is not None:
            self._group.signal(number)
        elif self._code is None and self._stopped_by is None:
            self._stopped_by = number
            task.cancel()
