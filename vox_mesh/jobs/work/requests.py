"""Take requests: one that is repeated, because its answer was lost, gets the same answer.

A node remembers them while it runs. What was taken through one that has ended is back after its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Generic, TypeVar

from vox_mesh.errors import BadValue
from vox_mesh.model.base.recent import Recent

T = TypeVar("T")

MAX_REQUEST_ID: Final = 128
_MAX_REMEMBERED: Final = 1_024

RequestKey = tuple[str, str]
"""An agent, and the id that it gave its request."""


class TakeRequests(Generic[T]):
    """Answers the requests of agents, each once; a request that took nothing may be made again."""

    def __init__(self, id_of: Callable[[T], str]) -> None:
        self._id_of = id_of
        self._answers: Recent[RequestKey, list[T]] = Recent(_MAX_REMEMBERED)
        self._under_way: dict[RequestKey, asyncio.Event] = {}

    async def answer(self, key: RequestKey, take: Callable[[], Awaitable[list[T]]]) -> list[T]:
        """Return what was taken for a request before, or take it now."""
        if not 1 <= len(key[1]) <= MAX_REQUEST_ID:
            raise BadValue(f"request_id must have 1 to {MAX_REQUEST_ID} characters, got {len(key[1])}")
        while (other := self._under_way.get(key)) is not None:
            await other.wait()
        if key in self._answers:
            return self._answers[key]
        over = self._under_way[key] = asyncio.Event()
        try:
            if taken := await take():
                self._answers[key] = taken
            return taken
        finally:
            del self._under_way[key]
            over.set()

    def forget(self, agent: str, job_ids: Collection[str]) -> None:
        """Forget the requests of an agent for which these jobs were taken: they were returned."""
        for key, taken in [*self._answers.items()]:
            if key[0] == agent and any(self._id_of(each) in job_ids for each in taken):
                del self._answers[key]
