"""The root of the error family, and what any part of the mesh may raise."""

from __future__ import annotations

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
    """A value is malformed, out of range or too large, or does not fit the others."""

    code = "bad_value"


class NotKnown(MeshError):
    """What was named does not exist, such as a node, job or grant."""

    code = "not_known"


class WrongThread(MeshError):
    """A blocking call was made in the thread of the event loop that it would wait for."""

    code = "wrong_thread"
