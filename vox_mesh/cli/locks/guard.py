"""`vox-mesh guard`: reject commits of paths that another agent holds."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from vox_mesh.cli.locks.git import HOOKS, NAME, WorkTree, install_hook, uninstall_hook
from vox_mesh.cli.support.exit_codes import NOT_LET_IN, ExitCode, exit_code_of
from vox_mesh.cli.support.options import acting_agent, agent_of_session
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    printable,
    show_one,
    show_several,
)
from vox_mesh.cli.support.session import AgentMesh, run_as_agent, start_quickly, start_shared
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.locks.path_guard import Obstacle, obstacles, unlocked
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.patterns import FILE

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_VARIABLE: Final = "VOX_GUARD"
_SHOWN: Final = 20
_NAMED: Final = 5
_MAX_PUSHED: Final = 1 << 20


class Findings(NamedTuple):
    """The result of a check: locks of other agents, and the paths that `agent` should have locked."""

    agent: str = ""
    obstacles: Sequence[Obstacle] = ()
    unlocked: Sequence[str] = ()
    is_named: bool = True
    """Whether the agent was given, by its name or its host."""


class Mode(StrEnum):
    """The values of `VOX_GUARD`. It is read from the environment only, never from a `.env` file."""

    ON = "on"
    LENIENT = "lenient"
    OFF = "off"


@click.group(cls=CommandGroup, no_args_is_help=False)
def guard() -> None:
    """Reject commits of paths that another agent holds."""


# --- checking ------------------------------------------------------------------------------------


@guard.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--staged", is_flag=True, help="Also check all paths that a commit would change now.")
@click.option(
    "--pushed", is_flag=True, help="Also check all paths that a push changes, as git tells its hook."
)
@click.option(
    "--between",
    nargs=2,
    metavar="OLD NEW",
    help="Also check all paths that differ between two commits.",
)
@click.option(
    "--require-lock", is_flag=True, help="Also require an exclusive lock of the agent on each path."
)
@click.option(
    "--agent",
    help="Agent whose own locks are ignored.",
    show_default="VOX_AGENT_ID, that of the host's setup, or the node's id",
)
@click.option(
    "--settings-in",
    type=click.Path(path_type=Path),
    help="Folder of the .env file, and base of relative paths in settings.",
    show_default="current folder",
)
@json_option
def check(
    paths: tuple[str, ...],
    staged: bool,
    pushed: bool,
    between: tuple[str, str] | None,
    require_lock: bool,
    agent: str | None,
    settings_in: Path | None,
    as_json: bool,
) -> ExitCode:
    """Check whether another agent holds one of the paths.

    Exclusive and shared locks count, on the path or on a pattern that matches it. Ends with 0 if no path is
    held, 1 if one is, 3 if the mesh is unreachable. A PATH is in the git repository of the current folder; a
    folder stands for everything in it. --staged compares the index with the last commit, not the working
    directory; both names of a renamed file count. --pushed reads the lines that git gives a pre-push hook.

    An agent's own locks never count, whichever node acquired them. The answer holds for this moment only: a
    path may be locked right after it.

    With --require-lock it also ends with 1 if a path is not covered by an exclusive lock of the agent, which
    has to be named: run it before an edit. With --json, such a path has no lock_key.

    VOX_GUARD=off skips the check and ends with 0; VOX_GUARD=lenient does so if the mesh is unreachable. Both
    print a warning.

    \b
    Example:
      vox-mesh guard check --agent planner src/lib.rs
    """
    if not paths and not staged and not pushed and between is None:
        raise click.UsageError("pass PATH, --staged, --pushed or --between")
    mode = _mode()
    if mode is Mode.OFF:
        return _skip_check("VOX_GUARD=off", as_json)
    tree = WorkTree.here()
    checked = [*map(tree.path_of, paths), *(tree.staged() if staged else ())]
    checked += tree.pushed(sys.stdin.read(_MAX_PUSHED).splitlines()) if pushed else []
    checked += tree.between(*between) if between is not None else []
    found = Findings()
    if checked:
        _change_folder(settings_in)
        settings = start_quickly("guard check", through_node=True)
        # The own locks of a coding agent must not reject its commits.
        agent = agent or settings.agent_id or agent_of_session(tree.root)
        own = acting_agent(agent, settings, "--agent") if require_lock else agent
        try:
            found = asyncio.run(_find(settings, checked, own, require_lock=require_lock))
        except MeshError as error:
            if exit_code_of(error) is ExitCode.USAGE and not isinstance(error, NOT_LET_IN):
                raise
            # Other errors must not look like "a path is held".
            if mode is Mode.LENIENT:
                return _skip_check(error.line, as_json)
            _print_error(f"locks not checked: {error.line}{_bypass('set VOX_GUARD=off to skip the check')}")
            return ExitCode.DATABASE_AWAY
    return _report(found, as_json)


def _mode() -> Mode:
    value = os.environ.get(_VARIABLE) or Mode.ON
    if value not in list(Mode):
        raise BadSettings(
            f"{_VARIABLE} must be one of {', '.join(Mode)}, got {value!r}", hint=f"unset {_VARIABLE}"
        )
    return Mode(value)


def _change_folder(folder: Path | None) -> None:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise BadSettings(
                f"folder of the guard's settings can't be used: {error}",
                hint="run `vox-mesh guard install` again in the folder of the settings",
            ) from None


def _bypass(how: str) -> str:
    """Return how the check is skipped, for a person: an agent that is refused should not skip it."""
    return f"; {how}" if sys.stderr.isatty() else ""


async def _find(
    settings: Settings, paths: Sequence[str], agent: str | None, *, require_lock: bool
) -> Findings:
    async def find(mesh: AgentMesh) -> Findings:
        own = agent or settings.agent_id or (mesh.identity.node_id if isinstance(mesh, Mesh) else mesh.agent)
        holders = await mesh.locks.holders()
        missing = unlocked(paths, holders, own) if require_lock else []
        is_named = agent is not None or settings.agent_id is not None
        return Findings(own, obstacles(paths, holders, own), missing, is_named)

    return await run_as_agent(settings, agent, find)


def _skip_check(why: str, as_json: bool) -> ExitCode:
    _print_error(f"warning: locks not checked: {why}; other agents may hold some of these paths")
    return _report(Findings(), as_json)


def _report(found: Findings, as_json: bool) -> ExitCode:
    if as_json:
        records = [*map(_record, found.obstacles), *map(_unlocked_record, found.unlocked)]
        show_several(records, as_json=True)
    if found.obstacles:
        _report_obstacles(found.obstacles, as_json, is_named=found.is_named)
    elif found.unlocked:
        _report_unlocked(found.unlocked, found.agent)
    return ExitCode.NO if found.obstacles or found.unlocked else ExitCode.DONE


def _report_unlocked(paths: Sequence[str], agent: str) -> None:
    count = len(paths)
    keys = " ".join(shlex.quote(FILE + ("**" if path == "./" else path)) for path in paths[:_NAMED])
    _print_error(
        f"{count} {'path is' if count == 1 else 'paths are'} not locked by {agent}; acquire the lock first: "
        f"vox-mesh lock acquire {keys}{' ...' if count > _NAMED else ''} --agent {shlex.quote(agent)}"
        f"{_bypass('VOX_GUARD=off skips the check')}"
    )


def _report_obstacles(found: Sequence[Obstacle], as_json: bool, *, is_named: bool) -> None:
    if not as_json:
        show_several([_line(obstacle) for obstacle in found[:_SHOWN]], as_json=False)
    count = len({obstacle.path for obstacle in found})
    held = f"{count} {'path is' if count == 1 else 'paths are'} held by other agents"
    if len(found) > _SHOWN and not as_json:
        held += f" (first {_SHOWN} locks shown, --json lists all {len(found)})"
    _print_error(
        f"{held}; unstage them, wait for their release (see `vox-mesh lock list`) or ask their holders"
        f"{'' if is_named else '; if you hold them, set VOX_AGENT_ID to your name'}"
        f"{_bypass('VOX_GUARD=off skips the check')}"
    )


def _record(obstacle: Obstacle) -> Record:
    """Return an obstacle as a JSON record."""
    holder = obstacle.holder
    return {
        "path": _unicode(obstacle.path.encode(errors="surrogateescape")),
        "lock_key": holder.lock_key,
        "holder_agent": holder.holder_agent,
        "holder_node": holder.holder_node,
        "fence_token": holder.fence_token,
        "is_shared": holder.is_shared,
        "acquired_at": holder.acquired_at,
        "expires_at": holder.expires_at,
    }


def _unlocked_record(path: str) -> Record:
    """Return a path without a lock as a JSON record."""
    names = (
        "lock_key",
        "holder_agent",
        "holder_node",
        "fence_token",
        "is_shared",
        "acquired_at",
        "expires_at",
    )
    return {"path": _unicode(path.encode(errors="surrogateescape")), **dict.fromkeys(names)}


def _unicode(path: bytes | Path) -> str:
    """Return a path as text for JSON; in a file system it may be any bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _line(obstacle: Obstacle) -> Record:
    """Return an obstacle's row of the table."""
    holder = obstacle.holder
    return {
        "path": obstacle.path,
        "lock_key": holder.lock_key,
        "holder_agent": holder.holder_agent,
        "holder_node": holder.holder_node,
        "mode": "shared" if holder.is_shared else "exclusive",
        "held for": f"{holder.age_s:.1f} s",
        "time left": f"{holder.left_s:.1f} s",
    }


def _print_error(line: str) -> None:
    click.echo(f"vox-mesh: {printable(' '.join(line.split()))}", err=True)


# --- the hook ------------------------------------------------------------------------------------


@guard.command()
@click.option("--force", is_flag=True, help="Keep an existing hook as pre-commit.local and call it first.")
@click.option("--require-lock", is_flag=True, help="Reject commits of paths that the agent has not locked.")
@json_option
def install(force: bool, require_lock: bool, as_json: bool) -> None:
    """Install a git hook that checks every commit.

    It covers the repository of the current folder and all its work trees. The hook runs this installation of
    vox-mesh with the settings of the current folder: its .env, and the current values of the variables that
    identify the mesh, unless the environment of the commit sets them. Tokens are never written into the hook:
    they come from .env or the environment of the commit.

    With --require-lock, every commit needs VOX_AGENT_ID and an exclusive lock of that agent on each path.
    Install again without it to remove this rule.

    If the mesh is unreachable the commit is rejected, unless VOX_GUARD says otherwise (see `guard check
    --help`). A hooks folder that several repositories share (core.hooksPath) guards all of them.

    \b
    Example:
      vox-mesh guard install
    """
    start_shared("guard install")
    hook = install_hook(WorkTree.here().hooks, Path.cwd(), os.environ, force=force, require_lock=require_lock)
    show_one({"hook": _unicode(hook), "settings_in": _unicode(Path.cwd())}, as_json=as_json)


@guard.command()
@json_option
def uninstall(as_json: bool) -> None:
    """Remove the hook and restore the previous one.

    The hooks of `hooks install git` are removed, too. Other hooks are left unchanged.

    \b
    Example:
      vox-mesh guard uninstall
    """
    hooks = WorkTree.here().hooks
    removed = [name for name in HOOKS if uninstall_hook(hooks, name=name)]
    show_one({"hook": _unicode(hooks / NAME), "was_installed": bool(removed)}, as_json=as_json)
