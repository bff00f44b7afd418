"""The root of the error family, and a part of it; import all errors from `vox_mesh.errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class MeshError(Exception):
    """Something a user can act on: what happened, a stable `code`, and a `hint` on what to do."""

    code: ClassVar[str] = "mesh_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def line(self) -> str:
        """The whole error on one line, as a person should read it."""
        message = " ".join(str(self).split())
        return f"{message}; {self.hint}" if self.hint else message


class BadSettings(MeshError):
    """A variable, option or argument holds a value that can't be used."""

    code = "bad_settings"


class BadValue(MeshError):
    """A value that no home could store and give back unchanged."""

    code = "bad_value"


class NotKnown(MeshError):
    """There is no such node, op or key."""

    code = "not_known"


class NotJson(BadValue):
    """A text is not JSON."""

    code = "not_json"


class BadDocument(BadValue):
    """A document is invalid. `faults` lists all that is wrong with it, one per line."""

    code = "bad_document"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class BadManifest(BadDocument):
    """A job's manifest can't be used."""

    code = "bad_manifest"


class BadWorkflow(BadDocument):
    """A workflow can't be used."""

    code = "bad_workflow"


class BadPolicy(BadDocument):
    """A tempo policy can't be used."""

    code = "bad_policy"


class BadScore(BadDocument):
    """A task's score can't be used."""

    code = "bad_score"


class BadAddress(BadValue):
    """An address can't be read. `position` is the offset of what is wrong, or the text's length: its end."""

    code = "bad_address"

    def __init__(self, message: str, *, position: int, hint: str) -> None:
        super().__init__(f"{message}, at offset {position}", hint=hint)
        self.position = position


class BadBudget(BadDocument):
    """A budget, or a file of rates, can't be used."""

    code = "bad_budget"


class UpgradeRefused(MeshError):
    """The server answers, but not over WebSocket."""

    code = "upgrade_refused"
