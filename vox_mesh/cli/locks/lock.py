"""`vox-mesh lock`: locks with leases and fencing tokens, and commands that run under them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.locks.lock_run import run
from vox_mesh.cli.locks.paths import keys_of, literal_option
from vox_mesh.cli.support.all_scopes import all_scopes_option, show_all_scopes
from vox_mesh.cli.support.mesh_report import print_mesh, verbose_option
from vox_mesh.cli.support.options import LockOptions, acting_agent, lock_options, ttl_option
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    details_option,
    json_option,
    show_done,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import AgentMesh, run_as_agent, run_command, run_on_mesh, start_quickly
from vox_mesh.errors import LockHeld, NotKnown
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.durations import short_duration
from vox_mesh.model.locks.patterns import FILE
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.nodes.processes import ProcessId, calling_process, process_of
from vox_mesh.runtime.locking import acquire_lock
from vox_mesh.views.locks import AcquiredView, HoldView, LockView

if TYPE_CHECKING:
    from vox_mesh.locks.sessions import LastsFor

_KEY: Final = click.argument("key")
_TOKEN: Final = click.option(
    "--token",
    type=click.IntRange(min=1),
    metavar="N",
    required=True,
    help="Fencing token of the lock.",
)
_FILE_TTL_S: Final = 600.0
"""The default lease of files: agents think for minutes. Python renews, and has a shorter one."""

_TTL: Final = "10m for files, 5m for other keys"


@click.group(cls=CommandGroup, no_args_is_help=False)
def lock() -> None:
    """Acquire, renew, release, list and break locks."""


# --- holding -------------------------------------------------------------------------------------


@lock.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@lock_options(_TTL)
@click.option("--fresh", is_flag=True, help="Refuse to renew a lock that the agent holds already.")
@click.option("--session", is_flag=True, help="Hold it as long as the process that runs this command.")
@click.option(
    "--session-pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Hold it as long as this process.",
)
@click.option("--heartbeats", is_flag=True, help="Hold it as long as the agent sends heartbeats.")
@literal_option
@verbose_option
@json_option
def acquire(
    keys: tuple[str, ...],
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
    fresh: bool,
    session: bool,
    session_pid: int | None,
    heartbeats: bool,
    literal: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Acquire all keys under one fencing token, or none.

    A KEY is a path of the current folder, file: and a path from the root of the repository, or task: and any
    name. A folder stands for everything in it: src/ is file:src/**.

    A lock that the agent holds already is renewed and keeps its token. Processes that use one agent's name on
    one node are one agent. --fresh and --until always acquire a new lock.

    --session needs a node on this machine (`vox-mesh up`), which renews the lock and releases it when the
    process ends. The process is the nearest parent that is no `sh -c`, or --session-pid. --ttl is then how
    long the lock lasts if the machine is lost.

    --heartbeats needs no node: each `vox-mesh agents heartbeat` of the agent renews the lock, which ends 60s
    (or --ttl) after the last one.

    If another agent holds a key, it ends with 1 and names the holders; with --json they are the document.

    \b
    Example:
      vox-mesh lock acquire file:src/lib.rs --agent coder --wait 10s
    """
    settings = start_quickly("lock acquire", through_node=True)
    if verbose:
        print_mesh(settings)
    keys = keys_of(keys, settings, literal=literal)
    options = LockOptions(keys, agent, ttl, wait, shared, until)
    arguments = options.arguments(settings) | {"or_renew": not fresh and until is None}
    if session or session_pid is not None or heartbeats:
        option = "--heartbeats" if heartbeats else "--session"
        if fresh or until is not None or (heartbeats and (session or session_pid is not None)):
            raise click.UsageError(f"{option} can't be combined with --session, --fresh or --until")
        arguments["session"] = "heartbeats" if heartbeats else _process(session_pid)
    elif until is None:
        arguments["ttl"] = _ttl_of(keys, ttl)
    try:
        held = asyncio.run(run_as_agent(settings, agent, lambda mesh: _acquire(mesh, arguments)))
    except LockHeld as refused:
        if as_json:
            show_several(_documents(refused.holders), as_json=True)
        raise
    about, ends = _session_of(arguments.get("session"), held)
    record = {**_record(AcquiredView.of(held), as_json=as_json), **about}
    line = f"{'renewed' if held.is_renewed else 'acquired'} {_named(held)}, {ends}"
    show_done(record, line, as_json=as_json, verbose=verbose)


async def _acquire(mesh: AgentMesh, arguments: dict[str, Any]) -> Lock:
    if isinstance(mesh, Mesh):
        return await acquire_lock(mesh, **arguments)
    return await mesh.locks.acquire(**arguments)


def _session_of(session: LastsFor | None, held: Lock) -> tuple[Record, str]:
    """Return the fields of a session, and how long the lock lasts."""
    if session is None:
        return {}, _expiry(held)
    if session == "heartbeats":
        return {"session": session}, f"{_expiry(held)} unless renewed by a heartbeat"
    return {"session_pid": session.pid}, f"held while process {session.pid} runs"


def _process(pid: int | None) -> ProcessId:
    return process_of(calling_process() if pid is None else pid)


def _ttl_of(keys: Sequence[str], ttl: float | None) -> float | None:
    """Return the lease of a lock; `None` is the default of its keys in Python."""
    return _FILE_TTL_S if ttl is None and any(key.startswith(FILE) for key in keys) else ttl


@lock.command()
@_KEY
@_TOKEN
@ttl_option(_TTL)
@literal_option
@details_option
@json_option
def renew(key: str, token: int, ttl: float | None, literal: bool, verbose: bool, as_json: bool) -> None:
    """Renew the lease of a lock and all of its keys.

    Without --ttl it gets the default lease of its keys, whatever it was acquired with.

    \b
    Example:
      vox-mesh lock renew file:src/lib.rs --token 7 --ttl 1m
    """
    settings = start_quickly("lock renew", through_node=True)
    (key,) = keys_of([key], settings, literal=literal)
    lease = _ttl_of([key], ttl)
    renewal = run_as_agent(settings, None, lambda mesh: mesh.locks.renew_by_token(key, token, ttl=lease))
    renewed = asyncio.run(renewal)
    _show_lock(renewed, f"renewed {_named(renewed)}, {_expiry(renewed)}", as_json=as_json, verbose=verbose)


@lock.command()
@click.argument("key", required=False)
@click.option("--token", type=click.IntRange(min=1), metavar="N", help="Fencing token of the lock.")
@click.option("--agent", help="Agent that holds the lock, if no token is given.", show_default="VOX_AGENT_ID")
@click.option("--all", "releases_all", is_flag=True, help="Release all locks of the agent on this node.")
@literal_option
@details_option
@json_option
def release(
    key: str | None,
    token: int | None,
    agent: str | None,
    releases_all: bool,
    literal: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Release a lock and all of its keys.

    The lock is named by its token, or else it is the agent's own, acquired on this node. With a wrong token
    nothing changes. --all releases every lock of the agent; with --json they are an array.

    \b
    Examples:
      vox-mesh lock release file:src/lib.rs --agent coder
      vox-mesh lock release file:src/lib.rs --token 7
      vox-mesh lock release --all --agent coder
    """
    if (key is None) != releases_all:
        raise click.UsageError("pass KEY or --all, and not both")
    if token is not None and (agent is not None or releases_all):
        raise click.UsageError("--token can't be combined with --agent or --all")
    settings = start_quickly("lock release", through_node=True)
    keys = None if key is None else keys_of([key], settings, literal=literal)
    if keys is not None and token is not None:
        one = run_as_agent(settings, None, lambda mesh: mesh.locks.release_by_token(keys[0], token))
        _show_released(asyncio.run(one), as_json=as_json, verbose=verbose)
        return
    owner = acting_agent(agent, settings, "--token N, or --agent")
    releasing = run_as_agent(settings, owner, lambda mesh: mesh.locks.release_held(keys, agent=owner))
    released = asyncio.run(releasing)
    if releases_all and not (as_json or verbose):
        show_lines([f"released {_named(each)}" for each in released] or [f"{owner} holds no locks here"])
    elif releases_all:
        show_several([_record(LockView.of(each), as_json=as_json) for each in released], as_json=as_json)
    elif released:
        _show_released(released[0], as_json=as_json, verbose=verbose)
    else:
        raise NotKnown(f"{key} was not released: its lease has just ended", hint="nothing is left to do")


def _show_released(held: Lock, *, as_json: bool, verbose: bool) -> None:
    _show_lock(held, f"released {_named(held)}", as_json=as_json, verbose=verbose)


def _show_lock(held: Lock, line: str, *, as_json: bool, verbose: bool) -> None:
    show_done(_record(LockView.of(held), as_json=as_json), line, as_json=as_json, verbose=verbose)


def _named(held: Lock) -> str:
    """Return the keys, holder and token of a lock on one line."""
    shared = "shared " if held.is_shared else ""
    return f"{shared}{', '.join(held.keys)} for {held.holder_agent} (token {held.fence_token})"


def _expiry(held: Lock) -> str:
    return f"expires in {short_duration(round(held.ttl) * 1_000)}"


def _record(view: LockView, *, as_json: bool) -> Record:
    keys: Record = {"lock_key": view.lock_keys[0]}
    if len(view.lock_keys) > 1:
        keys = {"lock_keys": view.lock_keys if as_json else ", ".join(view.lock_keys)}
    return {**keys, **{name: value for name, value in vars(view).items() if name != "lock_keys"}}


# --- reading -------------------------------------------------------------------------------------


@lock.command(name="list")
@click.option("--agent", help="Only the locks of this agent, on any node.")
@click.option("--watch", "goes_on", is_flag=True, help="Then show each change until Ctrl-C.")
@all_scopes_option
@json_option
def list_(agent: str | None, goes_on: bool, all_scopes: bool, as_json: bool) -> int | None:
    """List the held locks, their holders and waiters.

    With --watch a terminal shows the whole list after every change; otherwise, and with --json, each lock
    that is acquired, ends or gets other waiters is a line.

    \b
    Example:
      vox-mesh lock list --watch
    """
    if all_scopes:
        if goes_on:
            raise click.UsageError("--all-scopes and --watch can't be combined")
        return show_all_scopes(
            "lock list",
            lambda mesh: mesh.locks.holders(),
            lambda found: (_documents if as_json else _lines)(_of_agent(found, agent)),
            as_json=as_json,
        )
    if goes_on:
        run_command("lock list", lambda mesh: _watch(mesh, agent, as_json))
    else:
        settings = start_quickly("lock list", through_node=True)
        holders = asyncio.run(run_as_agent(settings, None, lambda mesh: mesh.locks.holders()))
        found = _of_agent(holders, agent)
        show_several(_documents(found) if as_json else _lines(found), as_json=as_json)
    return None


def _of_agent(holders: list[Holder], agent: str | None) -> list[Holder]:
    return [each for each in holders if agent in (None, each.holder_agent)]


def _documents(holders: Sequence[Holder]) -> list[Record]:
    return [vars(HoldView.of(each)) for each in holders]


def _lines(holders: Sequence[Holder]) -> list[Record]:
    """Return the rows of the table, with the sessions if there are any."""
    if all(each.session is None for each in holders):
        return [_line(each) for each in holders]
    return [{**_line(each), "session": _session(each)} for each in holders]


def _session(holder: Holder) -> str | None:
    return f"process {holder.session_pid}" if holder.session == "process" else holder.session


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


async def _watch(mesh: Mesh, agent: str | None, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    seen: dict[tuple[str, int], Holder] = {}
    async with aclosing(mesh.locks.watch()) as changes:
        async for everyones in changes:
            found = _of_agent(everyones, agent)
            if is_drawn:
                click.clear()
                show_lines(table(_lines(found)))
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
@literal_option
@json_option
def break_(key: str, reason: str, literal: bool, as_json: bool) -> None:
    """Break the locks on a key, with all of their keys.

    The op log records it. A former holder gets an error when it renews the lock or writes under it.

    \b
    Example:
      vox-mesh lock break task:42 --reason "its agent hangs"
    """
    settings = start_quickly("lock break")
    (key,) = keys_of([key], settings, literal=literal)
    op_id, holders = asyncio.run(run_on_mesh(settings, lambda mesh: mesh.locks.break_lock(key, reason)))
    broken = _documents(holders) if as_json else _lines(holders)
    show_one({"op_id": op_id, "broken": broken}, as_json=as_json)


lock.add_command(run)
