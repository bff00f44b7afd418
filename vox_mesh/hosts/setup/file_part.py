"""A part of a setup that is in one file: whether it is there, and how it gets in and out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.git_exclude import exclude, include


class SetupState(StrEnum):
    """The state of a part, or what was done to it."""

    PRESENT = "present"
    MISSING = "missing"
    OUTDATED = "outdated"
    ADDED = "added"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    ABSENT = "absent"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True)
class FilePart:
    """A part with a name, in a file; `put` and `take` are the edits of the file's text."""

    name: str
    file: ConfigFile
    put: Callable[[str | None], str]
    take: Callable[[str], str | None]
    ignored_as: str | None = None
    """The path in the project, if git is to ignore the file: it names paths of this machine."""

    @property
    def where(self) -> str:
        return str(self.file.path)

    def check(self) -> SetupState:
        """Return whether it is there, without changing anything."""
        text = self.file.read()
        if text is None or self.take(text) == text:
            return SetupState.MISSING if self.put(text) != text else SetupState.KEPT
        return SetupState.PRESENT if self.put(text) == text else SetupState.OUTDATED

    def apply(self) -> SetupState:
        """Put it in, or refresh it."""
        found = self.check()
        if found in (SetupState.PRESENT, SetupState.KEPT):
            return SetupState.UNCHANGED if found is SetupState.PRESENT else SetupState.KEPT
        text = self.file.read()
        after = self.put(text)
        if self.ignored_as is not None:
            exclude(self.file.root, self.ignored_as, self._owner)
        self.file.write(after, text)
        return SetupState.ADDED if found is SetupState.MISSING else SetupState.UPDATED

    def remove(self) -> SetupState:
        """Take it out again; the rest of the file stays unchanged."""
        text = self.file.read()
        if text is None or (left := self.take(text)) == text:
            return SetupState.ABSENT
        if left is None:
            self.file.remove(text)
        else:
            self.file.write(left, text)
        if self.ignored_as is not None:
            include(self.file.root, self._owner)
        return SetupState.REMOVED

    @property
    def _owner(self) -> str:
        return f"{self.name} in {self.ignored_as}"
