"""Deeds by number: under one number a player does the same in each of its lives, so it can be repeated."""

from __future__ import annotations

import random
from typing import Final

from proof.scene import Scene
from vox_mesh.model.base import ulid

_BEGINNING: Final = ulid.encode(0, 0)
_OF_A_LIFE: Final = 100
_AGAIN: Final = 0.15


class Numbers:
    """For the deeds of one life: mostly new ones, now and then one that this life or an earlier one had."""

    def __init__(self, scene: Scene) -> None:
        self._chance = scene.chance
        self._lives = scene.recorder.life
        self._used = 0

    def next(self) -> int:
        """A number for the next deed."""
        if self._chance.random() < _AGAIN:
            return self.earlier()
        self._used += 1
        return self._first(self._lives) + self._used - 1

    def earlier(self) -> int:
        """One that was used before, for all that is known: nobody remembers how far an earlier life came."""
        life = self._chance.randint(1, self._lives)
        return self._first(life) + self._chance.randrange(max(1, self._used))

    def _first(self, life: int) -> int:
        return (life - 1) * _OF_A_LIFE


def key_of(who: str, deed: str, number: int) -> str:
    """The idempotency key of a player's deed: a ULID."""
    return ulid.derive_ulid(_BEGINNING, f"{who} {deed} {number}")


def chance_of(who: str, deed: str, number: int) -> random.Random:
    """What decides how a player's deed is to be, whenever it is done."""
    return random.Random(f"{who} {deed} {number}")
