"""What locks are told as: a hold of one's own, and the holds of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple


@dataclass(slots=True)
class Lock:
    """A hold of ours: on all of its keys, under one token. Renewing it moves its end.

    `deadline`, by our own clock that never steps, is counted from when the request was first sent: we stop
    believing in a hold before the database does.
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
    """With the token, what identifies the hold in the database."""


class Holder(NamedTuple):
    """A hold as everyone sees it; `now_ms` is when it was looked at, by the database's clock."""

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

    @property
    def age_s(self) -> float:
        """For how long it has been held."""
        return max(0.0, (self.now_ms - milliseconds_at(self.acquired_at)) / 1_000)

    @property
    def left_s(self) -> float:
        """For how long it will be, unless it is renewed."""
        return max(0.0, (milliseconds_at(self.expires_at) - self.now_ms) / 1_000)

    def __str__(self) -> str:
        how = "shared" if self.is_shared else "held"
        return (
            f"{self.lock_key} is {how} by {self.holder_agent} on {self.holder_node} for {self.age_s:.1f} s "
            f"(token {self.fence_token}, {self.left_s:.1f} s left)"
        )


def milliseconds_at(iso: str) -> int:
    """A time of the database's, as it counts milliseconds."""
    return round(datetime.fromisoformat(iso).timestamp() * 1_000)


def iso_of(milliseconds: int) -> str:
    """The same as text, as the database writes it."""
    return f"{datetime.fromtimestamp(milliseconds / 1_000, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds % 1_000:03}Z"
