"""Install the hooks of a host into its configuration, and remove them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import MeshError
from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.git_exclude import exclude, include, refuse_if_tracked
from vox_mesh.hosts.setup.hook_plan import SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import HookCall, HookHost

_PACKAGED_SCRIPT: Final = Path(__file__).parents[1] / "hooks" / "script" / SCRIPT


class HookChange(NamedTuple):
    """What an installation or removal has done."""

    host: str
    file: Path
    changed: bool


@dataclass(frozen=True)
class HookInstaller:
    """The hooks of one host, in a project or in the user's own configuration."""

    host: HookHost
    project: Path | None
    """The root of the project; none for the user's own configuration."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def path(self) -> Path:
        """The place of the configuration file."""
        if self.project is not None:
            return self.project / self.host.project_file
        return self.host.user_file(self.environment)

    @property
    def file(self) -> ConfigFile:
        """The configuration file."""
        if self.project is not None:
            return ConfigFile(self.project, self.path)
        return ConfigFile(self.path.parent.parent, self.path, follows_all=True)

    def install(self, plan: HookPlan) -> HookChange:
        """Merge the hooks into the file. Hooks of ours that differ are replaced, all else stays."""
        file = self.file
        before = file.read()
        if self.project is not None:
            refuse_if_tracked(self.project, self.host.project_file)
        with _named(file):
            after = self.host.put(before, plan)
        install_script(plan.script)
        if self.project is not None:
            exclude(self.project, self.host.project_file, self._owner)
        if after != before:
            file.write(after, before)
        return HookChange(self.host.name, file.path, after != before)

    def remove(self) -> HookChange:
        """Take our hooks out of the file; a file that was made for them is removed."""
        file = self.file
        before = file.read()
        with _named(file):
            after = None if before is None else self.host.take(before)
        if before is not None and after is None:
            file.remove(before)
        elif before is not None and after is not None and after != before:
            file.write(after, before)
        if self.project is not None:
            include(self.project, self._owner)
        return HookChange(self.host.name, file.path, after != before)

    def calls(self) -> list[HookCall]:
        """Return what the host calls of ours by its configuration; nothing if it is not installed."""
        text = self.file.read()
        with _named(self.file):
            return [] if text is None else self.host.calls(text)

    @property
    def _owner(self) -> str:
        return f"hooks of {self.host.name}"


@contextmanager
def _named(file: ConfigFile) -> Iterator[None]:
    """Add the name of the file to the fault of its text."""
    try:
        yield
    except DocumentRefused as error:
        raise DocumentRefused(f"{file.path}: {error}", hint=error.hint) from None


# --- the script ----------------------------------------------------------------------------------


def interpreter() -> str:
    """Return the interpreter for the script: not that of a virtual environment, which may be removed."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def install_script(script: Path) -> None:
    """Copy the script into the home of the mesh, where it stays if the package is removed."""
    file = ConfigFile(script.parents[1], script)
    before, text = file.read(), packaged_script()
    if text != before:
        file.write(text, before)


def is_script_current(script: Path) -> bool:
    """Return whether the copy of the script is that of this version."""
    try:
        return ConfigFile(script.parents[1], script).read() == packaged_script()
    except MeshError:
        return False


def packaged_script() -> str:
    """Return the text of the script in this package."""
    return _PACKAGED_SCRIPT.read_text()
