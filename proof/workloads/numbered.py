"""Numbered operations: a number means the same operation in every incarnation, so it can be retried."""

from __future__ import annotations

import random
from typing import Final

from proof.workload import WorkloadContext
from vox_mesh.model.base import ulid

_BEGINNING: Final = ulid.encode(0, 0)
_PER_INCARNATION: Final = 100
_AGAIN: Final = 0.15


class Numbers:
    """Numbers for the operations of one incarnation: mostly new ones, sometimes one that was used before."""

    def __init__(self, context: WorkloadContext) -> None:
        self._rng = context.rng
        self._incarnations = context.recorder.incarnation
        self._used = 0

    def next(self) -> int:
        """Return the number of the next operation."""
        if self._rng.random() < _AGAIN:
            return self.earlier()
        self._used += 1
        return self._first(self._incarnations) + self._used - 1

    def earlier(self) -> int:
        """Return a number that was probably used before: how far an earlier incarnation came is not known."""
        incarnation = self._rng.randint(1, self._incarnations)
        return self._first(incarnation) + self._rng.randrange(max(1, self._used))

    def _first(self, incarnation: int) -> int:
        return (incarnation - 1) * _PER_INCARNATION


def key_of(who: str, operation: str, number: int) -> str:
    """Return the idempotency key of a node's operation: a ULID."""
    return ulid.derive_ulid(_BEGINNING, f"{who} {operation} {number}")


def rng_of(who: str, operation: str, number: int) -> random.Random:
    """Return the random source that decides the details of an operation, the same for each retry."""
    return random.Random(f"{who} {operation} {number}")
