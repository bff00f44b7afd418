"""Exit codes, and the code of each error."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from vox_mesh.errors import (
    AWAY,
    ApprovalPending,
    BadSettings,
    BadValue,
    DatabaseNotOpened,
    MeshError,
    SchemaTooNew,
    Unauthorized,
    WrongBackend,
)

KILLED: Final = 128
"""Added to the number of the signal that ended a command."""


class ExitCode(IntEnum):
    """The exit codes of commands. The first six are the contract; the others follow shell conventions."""

    DONE = 0
    NO = 1
    USAGE = 2
    DATABASE_AWAY = 3
    NOTHING_NEW = 4
    """With --once: the job had been scheduled before, and nothing was run."""
    APPROVAL_PENDING = 5
    """The agent has asked for an approval, and nothing else was done."""
    BUG = 70
    NOT_RUNNABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


NOT_LET_IN: Final = (Unauthorized, SchemaTooNew, DatabaseNotOpened)
"""The settings are well formed, and the database does not serve them."""

_BY_ERROR: Final = (
    ((BadSettings, BadValue, WrongBackend, *NOT_LET_IN), ExitCode.USAGE),
    (AWAY, ExitCode.DATABASE_AWAY),
    ((ApprovalPending,), ExitCode.APPROVAL_PENDING),
)


def exit_code_of(error: MeshError) -> ExitCode:
    """Return the exit code for an error."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), ExitCode.NO)


def shell_exit_code(code: int) -> int:
    """Return a child's exit code as a shell reports it; a negative one is the signal that killed it."""
    return code if code >= 0 else KILLED - code
