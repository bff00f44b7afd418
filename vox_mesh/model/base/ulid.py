"""ULIDs: 48 bits of milliseconds and 80 random bits, as 26 characters that sort by time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_TAIL_BITS: Final = 80
_TAIL_LIMIT: Final = 1 << _TAIL_BITS
_COUNT_BITS: Final = 40
_COUNT_LIMIT: Final = 1 << _COUNT_BITS
_TIME_LIMIT: Final = 1 << 48
_TIME_SHIFTS: Final = (40, 30, 20, 10, 0)
_TOKEN_SHIFTS: Final = (50, *_TIME_SHIFTS)
_TAIL_SHIFTS: Final = (70, 60, 50, 40, 30, 20, 10, 0)
_LETTERS: Final = frozenset(_ALPHABET)


def encode(milliseconds: int, chance: int) -> str:
    """Return the ULID of a time and an 80-bit number."""
    if not 0 <= milliseconds < _TIME_LIMIT or not 0 <= chance < _TAIL_LIMIT:
        raise ValueError("a ULID holds 48 bits of milliseconds and 80 bits of chance")
    return _letters(milliseconds, _TIME_SHIFTS) + _letters(chance, _TAIL_SHIFTS)


def _letters(number: int, shifts: tuple[int, ...]) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in shifts])


def is_ulid(text: str) -> bool:
    """Return whether `text` is a ULID in its canonical, upper-case form."""
    return len(text) == 26 and text[0] <= "7" and _LETTERS.issuperset(text)


def derive_ulid(ulid: str, purpose: str) -> str:
    """Return the ULID that every process derives from another one for a purpose; it has the same time."""
    digest = hashlib.sha3_256(f"{ulid} {purpose}".encode()).digest()
    return encode(milliseconds_of(ulid), int.from_bytes(digest[:10], "big"))


def attempt_ulid(job_id: str, claim_token: int) -> str:
    """Return the ULID of one attempt at a job; `take_phrases` in `sql/jobs.sql` derives the same one.

    The first letters are the token, which begins with the time of the claim; the rest are digits of the id.
    """
    return _letters(claim_token, _TOKEN_SHIFTS) + job_id[:14].upper()


def milliseconds_of(ulid: str) -> int:
    """Return the time part of a ULID."""
    value = 0
    for letter in ulid[:10]:
        value = value * 32 + _ALPHABET.index(letter)
    return value


class UlidSource:
    """Return strictly rising ULIDs, also within a millisecond and when the clock steps back.

    `now_ms` returns the wall clock, `chance` a random number of the given number of bits. Within a
    millisecond only the lower half of the random part is counted up, so that only its letters are encoded
    again.
    """

    def __init__(self, now_ms: Callable[[], int], chance: Callable[[int], int]) -> None:
        self._now_ms = now_ms
        self._chance = chance
        self._last_ms = -1
        self._coarse_time = -1  # all but the last 20 bits of the time
        self._coarse_letters = ""
        self._head = ""  # all letters but those of the count
        self._count = 0

    def __call__(self) -> str:
        now = self._now_ms()
        if now > self._last_ms:
            self._begin(now)
        else:
            self._count += 1
            if self._count == _COUNT_LIMIT:
                self._begin(self._last_ms + 1)
        count = self._count
        return (
            f"{self._head}{_PAIRS[count >> 30]}{_PAIRS[count >> 20 & 1023]}"
            f"{_PAIRS[count >> 10 & 1023]}{_PAIRS[count & 1023]}"
        )

    def _begin(self, milliseconds: int) -> None:
        if milliseconds >> 20 != self._coarse_time:
            self._coarse_time = milliseconds >> 20
            self._coarse_letters = encode(milliseconds, 0)[:6]
        self._last_ms = milliseconds
        chance = self._chance(_TAIL_BITS)
        self._head = (
            f"{self._coarse_letters}{_PAIRS[milliseconds >> 10 & 1023]}{_PAIRS[milliseconds & 1023]}"
            f"{_PAIRS[chance >> 70]}{_PAIRS[chance >> 60 & 1023]}"
            f"{_PAIRS[chance >> 50 & 1023]}{_PAIRS[chance >> 40 & 1023]}"
        )
        self._count = chance & (_COUNT_LIMIT - 1)
