"""`vox-mesh guard`: no commit of what another agent holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.locks import git_hook
from vox_mesh.cli.locks.git import WorkTree
from vox_mesh.cli.support.exit_codes import ExitCode, exit_code_of
from vox_mesh.cli.support.output import Record, json_option, show_one, show_several
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.locks.path_guard import Obstacle, obstacles
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings

_VARIABLE: Final = "VOX_GUARD"
_SHOWN: Final = 20


class Mode(StrEnum):
    """What `VOX_GUARD` says; it is read from the environment only, so that nobody forgets it in a file."""

    ON = "on"
    LENIENT = "lenient"
    OFF = "off"


@click.group(no_args_is_help=False)
def guard() -> None:
    """Refuse commits of paths that another agent holds."""


# --- asking --------------------------------------------------------------------------------------


@guard.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--staged", is_flag=True, help="Also all paths that a commit would change now.")
@click.option("--agent", help="Whose holds are not in the way.  [default: VOX_AGENT_ID, or the node's id]")
@click.option(
    "--settings-in",
    type=click.Path(path_type=Path),
    help="The folder whose .env applies, and from which relative paths in settings start.  [default: here]",
)
@json_option
def check(
    paths: tuple[str, ...], staged: bool, agent: str | None, settings_in: Path | None, as_json: bool
) -> ExitCode:
    """Ask whether another agent holds one of the PATHs, alone or shared, by name or by a pattern.

    Ends with 0 if none does, 1 if one does, 3 if the mesh can't be asked. A PATH is one of the git repository
    here; a folder stands for all that is in it. With --staged, what is in the index counts, compared with the
    last commit, and not what is in the working directory; of a renamed file, both names count.

    Holds of the same agent are its own, whatever node they were taken on. The answer is true for this moment
    only: a path may be taken right after it.

    VOX_GUARD=off asks nothing and ends with 0, and VOX_GUARD=lenient does so if the mesh can't be asked; both
    with a warning.

    \b
    Example:
      vox-mesh guard check --agent planner src/lib.rs
    """
    if not paths and not staged:
        raise click.UsageError("name a PATH, or give --staged")
    mode = _mode()
    if mode is Mode.OFF:
        return _unchecked("VOX_GUARD=off", as_json)
    tree = WorkTree.here()
    asked = [*map(tree.path_of, paths), *(tree.staged() if staged else ())]
    found: list[Obstacle] = []
    if asked:
        _enter(settings_in)
        settings = start_shared("guard check")
        try:
            found = asyncio.run(_in_the_way(settings, asked, agent))
        except MeshError as error:
            if exit_code_of(error) is ExitCode.USAGE:
                raise
            # Whatever else went wrong, it is not the answer no.
            if mode is Mode.LENIENT:
                return _unchecked(error.line, as_json)
            _say(f"nothing was checked: {error.line}; VOX_GUARD=off lets it through")
            return ExitCode.DATABASE_AWAY
    return _told(found, as_json)


def _mode() -> Mode:
    value = os.environ.get(_VARIABLE) or Mode.ON
    if value not in list(Mode):
        raise BadSettings(f"{_VARIABLE}: it can't be {value!r}", hint=f"use one of {', '.join(Mode)}")
    return Mode(value)


def _enter(folder: Path | None) -> None:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise BadSettings(
                f"the folder of the guard's settings can't be used: {error}",
                hint="run `vox-mesh guard install` again where the settings are",
            ) from None


async def _in_the_way(settings: Settings, paths: Sequence[str], agent: str | None) -> list[Obstacle]:
    async with Mesh.open_command(settings) as mesh:
        own = agent or settings.agent_id or mesh.identity.node_id
        return obstacles(paths, await mesh.locks.holders(), own)


def _unchecked(why: str, as_json: bool) -> ExitCode:
    _say(f"warning: nothing was checked: {why}; paths that others hold may be among these")
    return _told([], as_json)


def _told(found: Sequence[Obstacle], as_json: bool) -> ExitCode:
    if as_json:
        show_several([_record(obstacle) for obstacle in found], as_json=True)
    if not found:
        return ExitCode.DONE
    if not as_json:
        show_several([_line(obstacle) for obstacle in found[:_SHOWN]], as_json=False)
    count = len({obstacle.path for obstacle in found})
    held = f"{count} {'path is' if count == 1 else 'paths are'} held by others"
    if len(found) > _SHOWN and not as_json:
        held += f" (the first {_SHOWN} holds are shown, --json has all {len(found)})"
    _say(
        f"{held}; leave them out, wait for their release (see `vox-mesh lock list`) or ask their holders;"
        " VOX_GUARD=off lets them through"
    )
    return ExitCode.NO


def _record(obstacle: Obstacle) -> Record:
    """A path and who holds it, by column."""
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


def _unicode(path: bytes | Path) -> str:
    """The path for JSON; in a file system it may be any bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _line(obstacle: Obstacle) -> Record:
    """The same as people want to see it."""
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


def _say(line: str) -> None:
    click.echo(f"vox-mesh: {' '.join(line.split())}", err=True)


# --- the hook ------------------------------------------------------------------------------------


@guard.command()
@click.option(
    "--force", is_flag=True, help="Keep a hook that is there as pre-commit.local, and have it called first."
)
@json_option
def install(force: bool, as_json: bool) -> None:
    """Have git ask before every commit in the repository here, and in all its work trees.

    The hook runs this very vox-mesh, on PATH or not, with the settings of the current folder: its .env, and
    the variables set now that say which mesh it is, unless they are set otherwise at the time of a commit.
    Tokens are not written into it: they come from .env, or from the environment of the commit.

    What can't be checked is not committed, unless VOX_GUARD says otherwise (see `guard check --help`).
    Hooks that several repositories share (core.hooksPath) guard all of them.

    \b
    Example:
      vox-mesh guard install
    """
    start_shared("guard install")
    hook = git_hook.install(WorkTree.here().hooks, Path.cwd(), os.environ, force=force)
    show_one({"hook": _unicode(hook), "settings_in": _unicode(Path.cwd())}, as_json=as_json)


@guard.command()
@json_option
def uninstall(as_json: bool) -> None:
    """Take the hook out again, and put back the one that was there before. Hooks of others are left alone.

    \b
    Example:
      vox-mesh guard uninstall
    """
    hooks = WorkTree.here().hooks
    was_installed = git_hook.uninstall(hooks)
    show_one({"hook": _unicode(hooks / git_hook.NAME), "was_installed": was_installed}, as_json=as_json)
