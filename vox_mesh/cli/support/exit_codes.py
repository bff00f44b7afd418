"""Exit codes, and the one place that says which error ends with which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from vox_mesh.errors import (
    AWAY,
    BadSettings,
    BadValue,
    MeshError,
    WrongHome,
)

KILLED: Final = 128
"""Added to the number of the signal that killed a command."""


class ExitCode(IntEnum):
    """How a command ends. The first four are the contract; the others follow the shell's customs."""

    DONE = 0
    NO = 1
    USAGE = 2
    DATABASE_AWAY = 3
    BUG = 70
    NOT_RUNNABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_BY_ERROR: Final = (
    ((BadSettings, BadValue, WrongHome), ExitCode.USAGE),
    (AWAY, ExitCode.DATABASE_AWAY),
)


def exit_code_of(error: MeshError) -> ExitCode:
    """The exit code of a command that ends with this error."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), ExitCode.NO)


def as_shell_tells(code: int) -> int:
    """The exit code of a command that was run, if less than 0 is the signal that killed it."""
    return code if code >= 0 else KILLED - code
