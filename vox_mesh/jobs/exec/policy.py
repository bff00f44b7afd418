"""Which programs a worker may run for others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from vox_mesh.errors import BadSettings, MeshError

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where a program is looked for, unless a job brings a PATH of its own."""

_LOADER: Final = ("LD_", "DYLD_")
"""Variables by which any program can be made another one."""


class CommandRefused(MeshError):
    """A job's program is none of those that this worker may run."""

    code: ClassVar[str] = "command_refused"


def find_program(name: str, search_path: str, folder: Path) -> Path | None:
    """The program of that name, as a shell in this folder finds it; one that can't be run if no other is."""
    if "/" in name:
        found = [folder / name]
    else:
        found = [folder / place / name for place in search_path.split(os.pathsep)]
    found = [each for each in found if _is_file(each)]
    return next((each for each in found if os.access(each, os.X_OK)), found[0] if found else None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # somewhere that we may not look, or no name at all
        return False


@dataclass(frozen=True)
class ExecPolicy:
    """The programs that may be run: any, or those of a list of absolute paths and bare names.

    It is about the program alone: what that can be made to do by its arguments and variables is for whoever
    writes the list to know. A shell, or `env`, in it is any program.
    """

    allowed: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for entry in sorted(self.allowed or ()):
            if not entry or ("/" in entry and not entry.startswith("/")):
                raise BadSettings(
                    f"VOX_WORKER_EXEC_ALLOW: {entry!r} is neither an absolute path nor a bare name",
                    hint="write it like this: python3,/opt/tools/convert",
                )

    @classmethod
    def parsed(cls, text: str | None) -> Self:
        """The policy as VOX_WORKER_EXEC_ALLOW has it; unset or empty: any program."""
        if not text:
            return cls()
        return cls(frozenset(entry.strip() for entry in text.split(",") if entry.strip()))

    def permit(self, program: Path, environment: Mapping[str, str]) -> Path:
        """The file to run for a program that was found, so that what is checked is what is run."""
        if self.allowed is None:
            return program
        if loading := sorted(name for name in environment if name.startswith(_LOADER)):
            raise CommandRefused(
                f"the job sets {', '.join(loading)}, which could make any program of an allowed one",
                hint="leave it out: this worker runs only programs of a list",
            )
        file = program.resolve()
        if not any(_is_meant(entry, program, file) for entry in self.allowed):
            raise CommandRefused(
                f"{program} is not a program that this worker may run",
                hint="name it in VOX_WORKER_EXEC_ALLOW, or route the job to another worker",
            )
        return file


def _is_meant(entry: str, program: Path, file: Path) -> bool:
    """Whether an entry of the list means this program, which really is that file."""
    allowed = find_program(entry, SEARCH_PATH, Path("/"))
    if allowed is None or allowed.resolve() != file:
        return False
    # One file can be many programs, by the name that it is called: if a link to it is in the list, it is
    # the one of that name only.
    return allowed.name in (file.name, program.name)
