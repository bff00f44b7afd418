"""The guard's pre-commit hook: its text, and how it comes and goes without harm to a hook that was there."""

from __future__ import annotations

import filecmp
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import vox_mesh.cli
from vox_mesh.errors import MeshError

NAME: Final = "pre-commit"
KEPT: Final = "pre-commit.local"
"""What a hook that was there before is kept as."""

_OURS: Final = "# Installed by `vox-mesh guard install`; `vox-mesh guard uninstall` takes it out again."
_CALL: Final = f'[ ! -x "${{0%/*}}/{KEPT}" ] || "${{0%/*}}/{KEPT}" "$@" || exit'
_CHECK: Final = "guard check --staged --settings-in"
_WHICH_MESH: Final = (
    *("VOX_MESH_ENABLED", "VOX_MESH_SCOPE_ID", "VOX_MESH_REPOSITORY_ID", "VOX_MESH_HOME"),
    *("VOX_DB_URL", "TURSO_DATABASE_URL", "VOX_DB_PATH", "VOX_DB_DRIVER", "VOX_DB_ALLOW_PLAINTEXT"),
)
"""Variables that a hook brings along: they say which mesh it is, and hold no secret."""


class HookInTheWay(MeshError):
    """There is a hook already, and it is not ours to overwrite."""

    code = "hook_in_the_way"


def install(hooks: Path, settings_in: Path, environment: Mapping[str, str], *, force: bool) -> Path:
    """Put the hook there, or renew it; with `force`, one that is there is kept and called first."""
    hook, kept = hooks / NAME, hooks / KEPT
    is_there = os.path.lexists(hook)
    keeps = _keeps(hook) if is_ours(hook) else is_there
    if is_there and not is_ours(hook):
        if not force:
            raise HookInTheWay(
                f"there is a {NAME} hook already: {hook}",
                hint=f"run it with --force, to have that one kept as {KEPT} and called first; "
                "or have it call `vox-mesh guard check --staged`",
            )
        _keep(hook, kept)
    try:
        hooks.mkdir(parents=True, exist_ok=True)
        new = hooks / f"{NAME}.{os.getpid()}.new"
        new.write_bytes(os.fsencode(_text(settings_in, environment, keeps=keeps)))
        new.chmod(0o755)
        new.replace(hook)  # never half a hook, and never a moment without one
    except OSError as error:
        raise _unusable(hooks, error) from None
    return hook


def uninstall(hooks: Path) -> bool:
    """Take the hook out, and put the one back that was there before; `False` if it is not there."""
    hook, kept = hooks / NAME, hooks / KEPT
    if not is_ours(hook):
        return False
    try:
        if _keeps(hook) and os.path.lexists(kept):
            kept.replace(hook)
        else:
            hook.unlink()
    except OSError as error:
        raise _unusable(hooks, error) from None
    return True


def is_ours(hook: Path) -> bool:
    """Whether this is the guard's hook."""
    return _OURS in _lines(hook)


def _keeps(hook: Path) -> bool:
    return _CALL in _lines(hook)


def _lines(hook: Path) -> list[str]:
    try:
        return os.fsdecode(hook.read_bytes()).splitlines()
    except OSError:
        return []


def _keep(hook: Path, kept: Path) -> None:
    try:
        if not os.path.lexists(kept):
            shutil.copy2(hook, kept, follow_symlinks=False)
        elif not filecmp.cmp(hook, kept, shallow=False):  # they are the same where this was cut short before
            raise HookInTheWay(f"there is something else at {kept}", hint="move it away first")
    except OSError as error:
        raise _unusable(hook.parent, error) from None


def _unusable(hooks: Path, error: OSError) -> HookInTheWay:
    return HookInTheWay(f"the hooks in {hooks} can't be changed: {error}", hint="see who may write there")


def _text(settings_in: Path, environment: Mapping[str, str], *, keeps: bool) -> str:
    python, package, folder = (
        shlex.quote(str(path)) for path in (sys.executable, vox_mesh.cli.__file__, settings_in)
    )
    return "\n".join(
        [
            "#!/bin/sh",
            _OURS,
            "# It refuses a commit of paths that another agent holds. VOX_GUARD=off lets everything through.",
            *([_CALL] if keeps else []),
            *(
                f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(environment[name])}'
                for name in _WHICH_MESH
                if name in environment
            ),
            f"python={python} package={package} folder={folder}",
            'if [ -x "$python" ] && [ -f "$package" ]; then',
            # -P: what lies in the repository is not taken for a module of ours.
            f'    exec "$python" -P -m vox_mesh.cli {_CHECK} "$folder"',
            "elif command -v vox-mesh > /dev/null; then",
            f'    exec vox-mesh {_CHECK} "$folder"',
            "fi",
            'echo "vox-mesh: nothing was checked: $python with vox-mesh is gone;'
            ' install it and run \\`vox-mesh guard install\\` again, or set VOX_GUARD=off" >&2',
            '[ "$VOX_GUARD" = off ] || [ "$VOX_GUARD" = lenient ]',
            "",
        ]
    )
