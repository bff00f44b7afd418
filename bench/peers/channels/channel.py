"""The interface of a channel: one process sends stamps, another takes them one by one."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from bench.peers.peer import Service


class Taken(NamedTuple):
    """How long each took from its stamp to its receiver, and when the last was taken for good."""

    delays_ms: list[float]
    done_ns: int


class Channel(Protocol):
    """A channel, open in one process."""

    async def send(self, stamp: int) -> None:
        """Send one; it is stored when this returns."""

    async def take(self, count: int) -> Taken:
        """Take this many one by one, and acknowledge each."""


ChannelService = Service[Channel]


def stamp() -> int:
    """Return the moment, by a clock that all processes here share."""
    return time.monotonic_ns()


def delay_ms(sent: int) -> float:
    """Return the time since a stamp, in milliseconds."""
    return (time.monotonic_ns() - sent) / 1e6
