"""`vox-mesh lock`: locks with leases and fencing tokens, and commands that run under them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.support.exit_codes import KILLED, ExitCode, shell_exit_code
from vox_mesh.cli.support.mesh_report import print_mesh, verbose_option
from vox_mesh.cli.support.options import LockOptions, TrailingCommand, lock_options, ttl_option
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_quickly
from vox_mesh.errors import LockHeld, LockLost, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.runtime.locking import acquire_lock, hold_lock
from vox_mesh.settings.process import deny_inspection
from vox_mesh.views.locks import HoldView, LockView

if TYPE_CHECKING:
    from vox_mesh.jobs.exec.process_group import ProcessGroup
    from vox_mesh.settings import Settings

_KEY: Final = click.argument("key")
_TOKEN: Final = click.option(
    "--token",
    type=click.IntRange(min=1),
    metavar="N",
    required=True,
    help="Fencing token of the lock.",
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def lock() -> None:
    """Acquire, renew, release, list and break locks."""


# --- holding -------------------------------------------------------------------------------------


@lock.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@lock_options
@verbose_option
@json_option
def acquire(
    keys: tuple[str, ...],
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Acquire all keys under one fencing token, or none.

    If a key is held, it ends with 1 and names the holders; with --json the holders are the document.

    \b
    Example:
      vox-mesh lock acquire file:src/lib.rs --agent coder --wait 10s
    """
    settings = start_quickly("lock acquire")
    if verbose:
        print_mesh(settings)
    arguments = LockOptions(keys, agent, ttl, wait, shared, until).arguments(settings)
    try:
        held = asyncio.run(run_on_mesh(settings, lambda mesh: acquire_lock(mesh, **arguments)))
    except LockHeld as refused:
        if as_json:
            show_several([vars(HoldView.of(holder)) for holder in refused.holders], as_json=True)
        raise
    _show_lock(held, as_json=as_json)


@lock.command()
@_KEY
@_TOKEN
@ttl_option
@json_option
def renew(key: str, token: int, ttl: float | None, as_json: bool) -> None:
    """Renew the lease of a lock and all of its keys.

    Without --ttl it gets the default lease of its keys, whatever it was acquired with.

    \b
    Example:
      vox-mesh lock renew file:src/lib.rs --token 7 --ttl 1m
    """
    _show_lock(
        run_command("lock renew", lambda mesh: mesh.locks.renew_by_token(key, token, ttl=ttl)),
        as_json=as_json,
    )


@lock.command()
@_KEY
@_TOKEN
@json_option
def release(key: str, token: int, as_json: bool) -> None:
    """Release a lock and all of its keys.

    With a wrong token nothing changes.

    \b
    Example:
      vox-mesh lock release file:src/lib.rs --token 7
    """
    _show_lock(
        run_command("lock release", lambda mesh: mesh.locks.release_by_token(key, token)), as_json=as_json
    )


def _show_lock(held: Lock, *, as_json: bool) -> None:
    keys: Record = {"lock_key": held.keys[0]}
    if len(held.keys) > 1:
        keys = {"lock_keys": held.keys if as_json else ", ".join(held.keys)}
    about = {name: value for name, value in vars(LockView.of(held)).items() if name != "lock_keys"}
    show_one({**keys, **about}, as_json=as_json)


# --- reading -------------------------------------------------------------------------------------


@lock.command(name="list")
@click.option("--watch", "goes_on", is_flag=True, help="Then show each change until Ctrl-C.")
@json_option
def list_(goes_on: bool, as_json: bool) -> None:
    """List the held locks, their holders and waiters.

    With --watch a terminal shows the whole list after every change; otherwise, and with --json, each lock
    that is acquired, ends or gets other waiters is a line.

    \b
    Example:
      vox-mesh lock list --watch
    """
    if goes_on:
        run_command("lock list", lambda mesh: _watch(mesh, as_json))
    else:
        found = run_command("lock list", lambda mesh: mesh.locks.holders())
        show_several([vars(HoldView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


def _line(holder: Holder) -> Record:
    """Return a holder's row of the table."""
    return {
        "lock_key": holder.lock_key,
        "token": holder.fence_token,
        "node": holder.holder_node,
        "agent": holder.holder_agent,
        "mode": "shared" if holder.is_shared else "exclusive",
        "age": f"{holder.age_s:.1f}s",
        "expires in": f"{holder.left_s:.1f}s",
        "waiting": holder.waiting,
    }


async def _watch(mesh: Mesh, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    seen: dict[tuple[str, int], Holder] = {}
    async with aclosing(mesh.locks.watch()) as changes:
        async for found in changes:
            if is_drawn:
                click.clear()
                show_lines(table([_line(holder) for holder in found]))
                continue
            held = {(holder.lock_key, holder.fence_token): holder for holder in found}
            for gone in seen.keys() - held.keys():
                _show_change(seen[gone], "over", as_json)
            for name, holder in held.items():
                if name not in seen or seen[name].waiting != holder.waiting:
                    _show_change(holder, "held", as_json)
            seen = held


def _show_change(holder: Holder, state: str, as_json: bool) -> None:
    if as_json:
        show_next({"state": state, **vars(HoldView.of(holder))})
        return
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    fixed = {name: value for name, value in _line(holder).items() if name not in ("age", "expires in")}
    show_lines(table([{"time": time, "state": state, **fixed}])[1:])


# --- maintenance ---------------------------------------------------------------------------------


@lock.command()
@json_option
def sweep(as_json: bool) -> None:
    """Remove expired locks, as live nodes do by themselves.

    \b
    Example:
      vox-mesh lock sweep
    """
    swept = run_command("lock sweep", lambda mesh: mesh.locks.sweep_expired_distributed_locks())
    show_one({"swept": swept}, as_json=as_json)


@lock.command(name="break")
@_KEY
@click.option("--reason", required=True, help="Reason for the op log.")
@json_option
def break_(key: str, reason: str, as_json: bool) -> None:
    """Break the locks on a key, with all of their keys.

    The op log records it. A former holder gets an error when it renews the lock or writes under it.

    \b
    Example:
      vox-mesh lock break task:42 --reason "its agent hangs"
    """
    op_id, holders = run_command("lock break", lambda mesh: mesh.locks.break_lock(key, reason))
    broken = [vars(HoldView.of(each)) if as_json else _line(each) for each in holders]
    show_one({"op_id": op_id, "broken": broken}, as_json=as_json)


# --- lock run ------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@lock.command(cls=TrailingCommand)
@click.argument("keys", nargs=-1, required=True, metavar="KEY... -- COMMAND...")
@lock_options
def run(
    keys: tuple[str, ...],
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
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
