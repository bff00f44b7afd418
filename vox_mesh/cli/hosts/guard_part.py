"""The git guard as a part of a setup: hooks of git that check commits and pushes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vox_mesh.cli.hosts.git_hooks import git_status, install_git, remove_git
from vox_mesh.cli.locks.git import WorkTree
from vox_mesh.cli.support.output import Record
from vox_mesh.errors import BadSettings
from vox_mesh.hosts.setup.file_part import SetupState
from vox_mesh.hosts.setup.hook_status import HookState

_STATES: Final = {
    HookState.INSTALLED.value: SetupState.PRESENT,
    HookState.NOT_INSTALLED.value: SetupState.MISSING,
}


@dataclass(frozen=True)
class GuardPart:
    """The hooks of git in this repository; hooks of others are kept, and called first."""

    where: str
    name: str = "git guard"

    @classmethod
    def here(cls) -> list[GuardPart]:
        """Return the guard of the repository of the current folder; nothing outside of repositories."""
        try:
            return [cls(str(WorkTree.here().hooks))]
        except BadSettings:
            return []

    def check(self) -> SetupState:
        return _STATES.get(git_status()["state"], SetupState.OUTDATED)

    def apply(self) -> SetupState:
        found = self.check()
        if not _has_changed(install_git):
            return SetupState.UNCHANGED
        return SetupState.ADDED if found is SetupState.MISSING else SetupState.UPDATED

    def remove(self) -> SetupState:
        return SetupState.REMOVED if _has_changed(remove_git) else SetupState.ABSENT


def _has_changed(step: Callable[[], list[Record]]) -> bool:
    return any(record["changed"] for record in step())
