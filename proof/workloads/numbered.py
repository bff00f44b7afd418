"""Deeds by number: under one number a player does the same in each of its lives, so it can be repeated."""

from __future__ import annotations

import random
from typing import Final

from proof.workload import WorkloadContext
from vox_mesh.model.base import ulid

_BEGINNING: Final = ulid.encode(0, 0)
_PER_INCARNATION: Final = 100
_AGAIN: Final = 0.15


class Numbers:
    """For the deeds of one life: mostly new ones, now and then one that this life or an earlier one had."""

    def __init__(self, context: WorkloadContext) -> None:
        self._rng = context.rng
        self._incarnations = context.recorder.incarnation
        self._used = 0

    def next(self) -> int:
        """A number for the next deed."""
        if self._rng.random() < _AGAIN:
            return self.earlier()
        self._used += 1
        return self._first(self._incarnations) + self._used - 1

    def earlier(self) -> int:
        """One that was used before, for all that is known: nobody remembers how far an earlier life came."""
        incarnation = self._rng.randint(1, self._incarnations)
        return self._first(incarnation) + self._rng.randrange(max(1, self._used))

    def _first(self, incarnation: int) -> int:
        return (incarnation - 1) * _PER_INCARNATION


def key_of(who: str, operation: str, number: int) -> str:
    """The idempotency key of a player's deed: a ULID."""
    return ulid.derive_ulid(_BEGINNING, f"{who} {operation} {number}")


def rng_of(who: str, operation: str, number: int) -> random.Random:
    """What decides how a player's deed is to be, whenever it is done."""
    return random.Random(f"{who} {operation} {number}")
