"""The policy of command jobs: which commands a worker may run, and how they are confined."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Self

from vox_mesh.errors import MeshError
from vox_mesh.jobs.exec.allow_list import AllowEntry, parse_entries
from vox_mesh.jobs.exec.executable import ExecutableHashes
from vox_mesh.jobs.exec.isolation import Isolation
from vox_mesh.jobs.exec.secrets import ExecSecrets

SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where the programs of a list of allowed commands are searched."""


class CommandRefused(MeshError):
    """The policy of this worker does not allow a job's command."""

    code: ClassVar[str] = "command_refused"


def find_program(name: str, search_path: str, folder: Path) -> Path | None:
    """Return the program that a shell in this folder finds, or else a file that is not executable."""
    if "/" in name:
        candidates = [folder / name]
    else:
        candidates = [folder / part / name for part in search_path.split(os.pathsep)]
    files = [each for each in candidates if _is_file(each)]
    return next((each for each in files if os.access(each, os.X_OK)), files[0] if files else None)


def path_of_worker(variable: str | None) -> str:
    """Return the PATH of a worker for its commands: its absolute folders, then the usual ones.

    A relative folder would be one of the job's choice.
    """
    folders = [each for each in (variable or "").split(os.pathsep) if each.startswith("/")]
    return os.pathsep.join(dict.fromkeys([*folders, *SEARCH_PATH.split(os.pathsep)]))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # an inaccessible folder or an invalid name
        return False


@dataclass(frozen=True)
class ExecPolicy:
    """The commands that may run: any, or those of a list.

    With a list, a job's variables are refused unless the entry allows them, and PATH is never the job's.
    """

    allowed: tuple[AllowEntry, ...] | None = None
    isolation: Isolation = field(default_factory=Isolation)
    secrets: ExecSecrets = field(default_factory=ExecSecrets)
    path: str = SEARCH_PATH
    """Where a program is searched unless there is a list, or the job sets PATH."""
    executables: ExecutableHashes = field(default_factory=ExecutableHashes, compare=False)
    folder: Path | None = None
    """The worker's folder, below which relative folders of jobs are; `None` refuses these."""

    @classmethod
    def parsed(cls, text: str | None) -> Self:
        """Parse VOX_WORKER_EXEC_ALLOW; unset or empty allows any command."""
        return cls(parse_entries(text) if text else None)

    def search_path(self, variables: Mapping[str, str]) -> str:
        """Return where a program is searched. Raises `CommandRefused` if a job must not decide that."""
        if self.allowed is not None and "PATH" in variables:
            raise CommandRefused(
                "variable PATH is not taken from jobs on this worker",
                hint="remove it from the job's env, and name the program by its absolute path",
            )
        return SEARCH_PATH if self.allowed is not None else variables.get("PATH", self.path)

    def permit(self, program: Path, arguments: Sequence[str], variables: Mapping[str, str | None]) -> Path:
        """Return the file to run for a program, so that the checked file is the one that runs.

        The value of a variable is `None` if it is a secret of the worker.
        Raises `CommandRefused` if the command is not allowed.
        """
        if self.allowed is None:
            return program
        faults: list[str] = []
        for entry in self.allowed:
            if (file := _file_of(entry.program, program)) is None:
                continue
            fault = entry.argument_fault(arguments, file.resolve()) or entry.variable_fault(variables)
            if fault is None:
                return file
            faults.append(fault)
        if faults:
            raise CommandRefused(
                f"command refused: {faults[-1]}",
                hint="add an entry with patterns to VOX_WORKER_EXEC_ALLOW, or change the job",
            )
        raise CommandRefused(
            f"program {program} is not allowed on this worker",
            hint="add it to VOX_WORKER_EXEC_ALLOW, or route the job to another worker",
        )


def _file_of(name: str, program: Path) -> Path | None:
    """Return the file to run if an entry names this program; not the job's path, which may change."""
    allowed, file = find_program(name, SEARCH_PATH, Path("/")), program.resolve()
    if allowed is None or allowed.resolve() != file:
        return None
    # One file can be several programs, depending on the name it is called by: a link in the list allows only
    # the program of that name.
    if allowed.name == program.name:
        return allowed
    return file if allowed.name == file.name else None
