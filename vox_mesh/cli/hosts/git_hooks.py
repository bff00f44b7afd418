"""The hooks of git as a host: before a commit and a push, and after a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from vox_mesh.cli.locks.git import HOOKS, WorkTree, install_hook, is_current_hook, is_ours, uninstall_hook
from vox_mesh.cli.support.output import Record
from vox_mesh.errors import BadSettings
from vox_mesh.hosts.setup.hook_status import HookState

GIT: Final = "git"


def install_git() -> list[Record]:
    """Install all hooks of git; hooks of others are kept, and called first."""
    folder, records = WorkTree.here().hooks, list[Record]()
    for name in HOOKS:
        hook = folder / name
        before = _content(hook)
        install_hook(folder, Path.cwd(), os.environ, force=True, require_lock=False, name=name)
        records.append({"host": GIT, "file": str(hook), "changed": _content(hook) != before})
    return records


def remove_git() -> list[Record]:
    """Remove all hooks of git, and restore those of others."""
    folder = WorkTree.here().hooks
    return [
        {"host": GIT, "file": str(folder / name), "changed": uninstall_hook(folder, name=name)}
        for name in HOOKS
    ]


def git_status() -> Record:
    """Return the state of the hooks of git."""
    try:
        folder = WorkTree.here().hooks
    except BadSettings as error:
        return _record(HookState.NOT_INSTALLED, "", error.hint)
    installed = [name for name in HOOKS if is_ours(folder / name)]
    if not installed:
        return _record(HookState.NOT_INSTALLED, str(folder), "run `vox-mesh hooks install git`")
    if all(is_current_hook(folder, Path.cwd(), os.environ, name=name) for name in HOOKS):
        return _record(HookState.INSTALLED, str(folder), "")
    return _record(HookState.OUTDATED, str(folder), "run `vox-mesh hooks install git` again")


def _record(state: HookState, file: str, advice: str) -> Record:
    return {"host": GIT, "scope": "project", "state": state.value, "file": file, "advice": advice}


def _content(hook: Path) -> bytes | None:
    return hook.read_bytes() if hook.exists() else None
