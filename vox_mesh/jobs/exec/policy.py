"""The policy of the programs that a worker may run for command jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from vox_mesh.errors import BadSettings, MeshError

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where a program is searched unless the job sets PATH."""

_LOADER_PREFIXES: Final = ("LD_", "DYLD_")
"""Prefixes of variables that can make a program load other code."""


class CommandRefused(MeshError):
    """The policy of this worker does not allow a job's program."""

    code: ClassVar[str] = "command_refused"


def find_program(name: str, search_path: str, folder: Path) -> Path | None:
    """Return the program that a shell in this folder finds, or else a file that is not executable."""
    if "/" in name:
        candidates = [folder / name]
    else:
        candidates = [folder / part / name for part in search_path.split(os.pathsep)]
    files = [each for each in candidates if _is_file(each)]
    return next((each for each in files if os.access(each, os.X_OK)), files[0] if files else None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # an inaccessible folder or an invalid name
        return False


@dataclass(frozen=True)
class ExecPolicy:
    """The programs that may run: any, or those of a list of absolute paths and bare names.

    The policy covers the program only, not its arguments and variables: a list that has a shell or `env`
    allows any program.
    """

    allowed: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for entry in sorted(self.allowed or ()):
            if not entry or ("/" in entry and not entry.startswith("/")):
                raise BadSettings(
                    f"VOX_WORKER_EXEC_ALLOW: each program must be a name or an absolute path, got {entry!r}",
                    hint="list names and absolute paths, for example python3,/opt/tools/convert",
                )

    @classmethod
    def parsed(cls, text: str | None) -> Self:
        """Parse VOX_WORKER_EXEC_ALLOW; unset or empty allows any program."""
        if not text:
            return cls()
        return cls(frozenset(entry.strip() for entry in text.split(",") if entry.strip()))

    def permit(self, program: Path, environment: Mapping[str, str]) -> Path:
        """Return the file to run for a program, so that the checked file is the one that runs.

        Raises `CommandRefused` if it is not allowed.
        """
        if self.allowed is None:
            return program
        if loading := sorted(name for name in environment if name.startswith(_LOADER_PREFIXES)):
            raise CommandRefused(
                f"the job sets {', '.join(loading)}, which can make an allowed program run other code",
                hint="remove it from the job's env: this worker runs only listed programs",
            )
        file = program.resolve()
        if not any(_is_entry_for(entry, program, file) for entry in self.allowed):
            raise CommandRefused(
                f"program {program} is not allowed on this worker",
                hint="add it to VOX_WORKER_EXEC_ALLOW, or route the job to another worker",
            )
        return file


def _is_entry_for(entry: str, program: Path, file: Path) -> bool:
    """Return whether an entry of the list names this program, which resolves to `file`."""
    allowed = find_program(entry, SEARCH_PATH, Path("/"))
    if allowed is None or allowed.resolve() != file:
        return False
    # One file can be several programs, depending on the name it is called by: a link in the list allows only
    # the program of that name.
    return allowed.name in (file.name, program.name)
