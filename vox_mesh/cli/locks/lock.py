"""`vox-mesh lock`: leases on keys, each with a token that fences whoever has lost one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

import click

from vox_mesh.cli.locks.lock_run import run
from vox_mesh.cli.support.options import Wanted, lock_options, ttl_option
from vox_mesh.cli.support.output import (
    Record,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import LockHeld
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.runtime.locking import acquire_lock
from vox_mesh.settings import Settings
from vox_mesh.views.locks import HoldView, LockView

_KEY: Final = click.argument("key")
_TOKEN: Final = click.option(
    "--token",
    type=click.IntRange(min=1),
    metavar="N",
    required=True,
    help="The token that it was acquired with.",
)


@click.group(no_args_is_help=False)
def lock() -> None:
    """Acquire, renew, release, list and break locks, and run commands under them."""


lock.add_command(run)


# --- holding -------------------------------------------------------------------------------------


@lock.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@lock_options
@json_option
def acquire(
    keys: tuple[str, ...],
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
    as_json: bool,
) -> None:
    """Acquire all of the keys under one token, or none of them.

    If somebody else has one of them, it ends with 1 and says who; with --json these holds are the document.

    \b
    Example:
      vox-mesh lock acquire file:src/lib.rs --agent coder --wait 10s
    """
    settings = start_shared("lock acquire")
    wanted = Wanted(keys, agent, ttl, wait, shared, until).asked(settings)
    try:
        held = asyncio.run(_acquire(settings, wanted))
    except LockHeld as refused:
        if as_json:
            show_several([vars(HoldView.of(holder)) for holder in refused.holders], as_json=True)
        raise
    _show_lock(held, as_json=as_json)


async def _acquire(settings: Settings, wanted: dict[str, Any]) -> Lock:
    async with Mesh.open_command(settings) as mesh:
        return await acquire_lock(mesh, **wanted)


@lock.command()
@_KEY
@_TOKEN
@ttl_option
@json_option
def renew(key: str, token: int, ttl: float | None, as_json: bool) -> None:
    """Hold a lock again, from now on; all of its keys, if it has several.

    Without --ttl it is for the usual time of its keys, whatever it was acquired for.

    \b
    Example:
      vox-mesh lock renew file:src/lib.rs --token 7 --ttl 1m
    """
    _show_lock(asyncio.run(_renew(start_shared("lock renew"), key, token, ttl)), as_json=as_json)


async def _renew(settings: Settings, key: str, token: int, ttl: float | None) -> Lock:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.locks.renew_by_token(key, token, ttl=ttl)


@lock.command()
@_KEY
@_TOKEN
@json_option
def release(key: str, token: int, as_json: bool) -> None:
    """Let go of a lock; of all of its keys, if it has several. With a wrong token nothing changes.

    \b
    Example:
      vox-mesh lock release file:src/lib.rs --token 7
    """
    _show_lock(asyncio.run(_release(start_shared("lock release"), key, token)), as_json=as_json)


async def _release(settings: Settings, key: str, token: int) -> Lock:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.locks.release_by_token(key, token)


def _show_lock(held: Lock, *, as_json: bool) -> None:
    keys: Record = {"lock_key": held.keys[0]}
    if len(held.keys) > 1:
        keys = {"lock_keys": held.keys if as_json else ", ".join(held.keys)}
    about = {name: value for name, value in vars(LockView.of(held)).items() if name != "lock_keys"}
    show_one({**keys, **about}, as_json=as_json)


# --- looking -------------------------------------------------------------------------------------


@lock.command(name="list")
@click.option("--watch", "goes_on", is_flag=True, help="Then show each change as it happens, until Ctrl-C.")
@json_option
def list_(goes_on: bool, as_json: bool) -> None:
    """List who holds what: key, token, node, agent, mode, age, time left, and how many wait for it.

    With --watch, in a terminal the list is drawn anew with every change; otherwise, and with --json, each
    hold that comes, ends or has others waiting for it is a line.

    \b
    Example:
      vox-mesh lock list --watch
    """
    settings = start_shared("lock list")
    if goes_on:
        asyncio.run(_watch(settings, as_json))
    else:
        found = asyncio.run(_listed(settings))
        show_several([vars(HoldView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


async def _listed(settings: Settings) -> list[Holder]:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.locks.holders()


def _line(holder: Holder) -> Record:
    """A hold as people want to see it."""
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


async def _watch(settings: Settings, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    seen: dict[tuple[str, int], Holder] = {}
    async with Mesh.open_command(settings) as mesh, aclosing(mesh.locks.watch()) as changes:
        async for found in changes:
            if is_drawn:
                click.clear()
                show_lines(table([_line(holder) for holder in found]))
                continue
            held = {(holder.lock_key, holder.fence_token): holder for holder in found}
            for gone in seen.keys() - held.keys():
                _tell(seen[gone], "over", as_json)
            for name, holder in held.items():
                if name not in seen or seen[name].waiting != holder.waiting:
                    _tell(holder, "held", as_json)
            seen = held


def _tell(holder: Holder, state: str, as_json: bool) -> None:
    if as_json:
        show_next({"state": state, **vars(HoldView.of(holder))})
        return
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    told = {name: value for name, value in _line(holder).items() if name not in ("age", "expires in")}
    show_lines(table([{"time": time, "state": state, **told}])[1:])


# --- tidying up ----------------------------------------------------------------------------------


@lock.command()
@json_option
def sweep(as_json: bool) -> None:
    """Remove holds that have expired. It is tidying only, and live nodes do so by themselves.

    \b
    Example:
      vox-mesh lock sweep
    """
    show_one({"swept": asyncio.run(_sweep(start_shared("lock sweep")))}, as_json=as_json)


async def _sweep(settings: Settings) -> int:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.locks.sweep_expired_distributed_locks()


@lock.command(name="break")
@_KEY
@click.option("--reason", required=True, help="Why, for the log.")
@json_option
def break_(key: str, reason: str, as_json: bool) -> None:
    """End the holds of KEY, with all of their keys. It is recorded in the op log.

    Whoever held it is told when it next renews it, or writes under it.

    \b
    Example:
      vox-mesh lock break task:42 --reason "its agent hangs"
    """
    op_id, holders = asyncio.run(_break(start_shared("lock break"), key, reason))
    broken = [vars(HoldView.of(each)) if as_json else _line(each) for each in holders]
    show_one({"op_id": op_id, "broken": broken}, as_json=as_json)


async def _break(settings: Settings, key: str, reason: str) -> tuple[str, list[Holder]]:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.locks.break_lock(key, reason)
