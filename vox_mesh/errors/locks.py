"""Errors about locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vox_mesh.errors.base import MeshError


class LockHeld(MeshError):
    """The lock was not acquired: another agent holds it, or waits for it ahead of this one.

    `holders` are records of those who do hold it.
    """

    code = "lock_held"
    retryable = True

    def __init__(self, message: str, holders: Sequence[Any] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.holders = holders


class LockLost(MeshError):
    """The lease of a held lock ended: another holder may be using what it protects."""

    code = "lock_lost"
