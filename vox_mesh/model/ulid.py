"""ULIDs: 48 bits of milliseconds and 80 bits of chance, as 26 characters that sort by time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_TAIL_BITS: Final = 80
_TAIL_LIMIT: Final = 1 << _TAIL_BITS
_TIME_LIMIT: Final = 1 << 48
_TIME_SHIFTS: Final = (40, 30, 20, 10, 0)
_TAIL_SHIFTS: Final = (70, 60, 50, 40, 30, 20, 10, 0)
_LETTERS: Final = frozenset(_ALPHABET)


def encode(milliseconds: int, chance: int) -> str:
    """The ULID of a time and an 80-bit number."""
    if not 0 <= milliseconds < _TIME_LIMIT or not 0 <= chance < _TAIL_LIMIT:
        raise ValueError("a ULID holds 48 bits of milliseconds and 80 bits of chance")
    return _letters(milliseconds, _TIME_SHIFTS) + _letters(chance, _TAIL_SHIFTS)


def _letters(number: int, shifts: tuple[int, ...]) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in shifts])


def is_ulid(text: str) -> bool:
    """Whether `text` is a ULID in its canonical, upper-case form."""
    return len(text) == 26 and text[0] <= "7" and _LETTERS.issuperset(text)


def derived(ulid: str, purpose: str) -> str:
    """The ULID that everyone derives from another one for a purpose; it sorts beside it."""
    digest = hashlib.sha3_256(f"{ulid} {purpose}".encode()).digest()
    return encode(milliseconds_of(ulid), int.from_bytes(digest[:10], "big"))


def milliseconds_of(ulid: str) -> int:
    """The time part of a ULID."""
    value = 0
    for letter in ulid[:10]:
        value = value * 32 + _ALPHABET.index(letter)
    return value


class UlidSource:
    """Makes ULIDs that rise strictly, also within a millisecond and when the clock steps back.

    `now_ms` gives the wall clock, `chance` a random number of so many bits.
    """

    def __init__(self, now_ms: Callable[[], int], chance: Callable[[int], int]) -> None:
        self._now_ms = now_ms
        self._chance = chance
        self._last_ms = -1
        self._head = ""
        self._tail = 0

    def __call__(self) -> str:
        now = self._now_ms()
        if now > self._last_ms:
            self._begin(now)
        else:
            self._tail += 1
            if self._tail == _TAIL_LIMIT:
                self._begin(self._last_ms + 1)
        return self._head + _letters(self._tail, _TAIL_SHIFTS)

    def _begin(self, milliseconds: int) -> None:
        self._last_ms = milliseconds
        self._head = _letters(milliseconds, _TIME_SHIFTS)
        self._tail = self._chance(_TAIL_BITS)
