"""Errors about scripts: what became of a write, and whether it has an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vox_mesh.errors.base import MeshError


class ScriptFailed(MeshError):
    """The script was rolled back and has no effect. `statement` is the index of the one that failed."""

    code = "script_failed"

    def __init__(self, message: str, *, statement: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.statement = statement


class ConstraintFailed(ScriptFailed):
    """A constraint of the schema failed."""

    code = "constraint_failed"


class BadStatement(ScriptFailed):
    """The database could not run a statement: a fault in the program, not in the data."""

    code = "bad_statement"


class TooLarge(ScriptFailed):
    """A request, or the answer to it, is larger than the server allows."""

    code = "too_large"


class UnreadableText(ScriptFailed):
    """The answer would hold text that is not UTF-8, which only a hostile or faulty writer stores."""

    code = "unreadable_text"


class RowMoved(ScriptFailed):
    """The row has changed since it was read. `now` is its current content; `None` if it was deleted.

    `version` names this content, for a decision on it.
    """

    code = "row_moved"

    def __init__(
        self, message: str, *, now: Mapping[str, Any] | None, version: str, statement: int, hint: str
    ) -> None:
        super().__init__(message, statement=statement, hint=hint)
        self.now = now
        self.version = version


class AlreadyResolved(ScriptFailed):
    """The conflict is already resolved."""

    code = "already_resolved"


class Contended(MeshError):
    """Every attempt lost to a concurrent write of the row: it has no effect."""

    code = "contended"
    retryable = True


class MergeClash(MeshError):
    """Both sides changed the same `columns`, or one of them deleted the row: nothing can be merged."""

    code = "merge_clash"

    def __init__(self, message: str, *, columns: Sequence[str], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.columns = tuple(columns)


class OutcomeUnknown(MeshError):
    """The write may or may not have been applied: no answer came in time, or the disk failed at the commit.

    Sending the same script again, under the same `key`, is safe and returns its outcome.
    """

    code = "outcome_unknown"
    retryable = True

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, hint="send it again under the same key to learn the outcome")
        self.key = key


class Overloaded(MeshError):
    """The deadline passed before there was room to send the script: it has no effect."""

    code = "overloaded"
    retryable = True
