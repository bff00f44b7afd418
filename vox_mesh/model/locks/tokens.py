"""Fencing tokens: rising numbers that contain the time, so that they rise even across a rollback.

They stay below 2^53 until the year 2248, so that every JSON reader can hold them.
"""

from __future__ import annotations

from typing import Final

_TIME_SHIFT: Final = 10  # as in `sql/locks.sql`


def next_token(last: int, now_ms: int) -> int:
    """Return a token above the last one and not below the time."""
    return max(last + 1, now_ms << _TIME_SHIFT)
