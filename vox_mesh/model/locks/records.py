"""Lock records: a lock held by this process, the holders that everyone sees, and fencing tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

SessionKind = Literal["process", "heartbeats"]

_TOKEN_TIME_SHIFT: Final = 10  # as in `sql/locks.sql`
_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999."""


@dataclass(slots=True)
class Lock:
    """A lock held by this process: all of its keys, under one token. Renewing it extends its expiry.

    `deadline`, by our monotonic clock, is counted from when the request was first sent: this process gives up
    the lock before the database does.
    """

    keys: tuple[str, ...]
    fence_token: int
    holder_node: str
    holder_agent: str
    is_shared: bool
    ttl: float
    expires_at: str
    deadline: float
    request_id: str
    """Identifies the lock in the database, together with the token."""
    is_renewed: bool = field(default=False, kw_only=True)
    """Whether its agent held it already when it was acquired."""


class Holder(NamedTuple):
    """A held lock as everyone sees it; `now_ms` is when it was read, by the database's clock.

    `session_pid`: the process that it lasts for, 0 if it lasts as long as its agent sends heartbeats.
    """

    lock_key: str
    fence_token: int
    holder_node: str
    holder_agent: str
    is_shared: bool
    acquired_at: str
    expires_at: str
    request_id: str
    waiting: int
    now_ms: int
    session_pid: int | None = None

    @property
    def age_s(self) -> float:
        """Return the seconds since it was acquired."""
        return max(0.0, (self.now_ms - milliseconds_at(self.acquired_at)) / 1_000)

    @property
    def left_s(self) -> float:
        """Return the seconds until it expires unless renewed."""
        return max(0.0, (milliseconds_at(self.expires_at) - self.now_ms) / 1_000)

    @property
    def session(self) -> SessionKind | None:
        """Return what keeps its lease renewed, if it is the lock of a session."""
        if self.session_pid is None:
            return None
        return "process" if self.session_pid else "heartbeats"

    def __str__(self) -> str:
        how = "shared" if self.is_shared else "held"
        return (
            f"{self.lock_key} is {how} by {self.holder_agent} on {self.holder_node} for {self.age_s:.1f} s "
            f"(token {self.fence_token}, {self.left_s:.1f} s left)"
        )


class LockWaiter(NamedTuple):
    """A request that waits for a key; `now_ms` is when it was read, by the database's clock."""

    lock_key: str
    holder_node: str
    holder_agent: str
    is_shared: bool
    waits_since: str
    now_ms: int

    @property
    def age_s(self) -> float:
        """Return the seconds since it began to wait."""
        return max(0.0, (self.now_ms - milliseconds_at(self.waits_since)) / 1_000)


def milliseconds_at(iso: str) -> int:
    """Return the milliseconds since the epoch of a time as the database writes it.

    A text that is no time, which no node writes, counts as the last time there is.
    """
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1_000)
    except (ValueError, TypeError, OverflowError):
        return _LAST_MS


def iso_of(milliseconds: int) -> str:
    """Return a time in milliseconds as text, as the database writes it."""
    return f"{datetime.fromtimestamp(milliseconds / 1_000, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds % 1_000:03}Z"


def next_token(last: int, now_ms: int) -> int:
    """Return a fencing token above the last one and not below the time.

    Tokens contain the time, so that they rise even across a rollback. They stay below 2^53 until the year
    2248, so that every JSON reader can hold them.
    """
    return max(last + 1, now_ms << _TOKEN_TIME_SHIFT)
