"""Exit codes, and the code of each error."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from vox_mesh.errors import (
    AWAY,
    BadSettings,
    BadValue,
    MeshError,
    WrongBackend,
)

KILLED: Final = 128
"""Added to the number of the signal that ended a command."""


class ExitCode(IntEnum):
    """The exit codes of commands. The first five are the contract; the others follow shell conventions."""

    DONE = 0
    NO = 1
    USAGE = 2
    DATABASE_AWAY = 3
    NOTHING_NEW = 4
    """With --once: the job had been scheduled before, and nothing was run."""
    BUG = 70
    NOT_RUNNABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_BY_ERROR: Final = (
    ((BadSettings, BadValue, WrongBackend), ExitCode.USAGE),
    (AWAY, ExitCode.DATABASE_AWAY),
)


def exit_code_of(error: MeshError) -> ExitCode:
    """Return the exit code for an error."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), ExitCode.NO)


def shell_exit_code(code: int) -> int:
    """Return a child's exit code as a shell reports it; a negative one is the signal that killed it."""
    return code if code >= 0 else KILLED - code
