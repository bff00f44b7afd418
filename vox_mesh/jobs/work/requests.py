"""Take requests: one that is repeated, because its answer was lost, gets the same answer.

A node remembers the last ones of each agent while it runs. What was taken through one that has ended is back
after its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Generic, TypeVar

from vox_mesh.errors import BadValue

T = TypeVar("T")

MAX_REQUEST_ID: Final = 128
MAX_OF_AGENT: Final = 64
"""The requests of one agent that are remembered."""

MAX_BYTES_OF_AGENT: Final = 4 * 2**20
"""The bytes of their answers. A larger answer is not remembered."""

MAX_BYTES: Final = 64 * 2**20
"""The bytes of all answers. Beyond it, the agent with the most bytes loses its oldest ones."""

_ENTRY_BYTES: Final = 1_024
"""What an answer takes besides its text."""

RequestKey = tuple[str, str]
"""An agent, and the id that it gave its request."""


class _AnswersOfAgent(Generic[T]):
    """The answers to the last requests of one agent, the oldest first."""

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[list[T], int]] = {}
        self.size = 0

    def add(self, request_id: str, taken: list[T], size: int) -> None:
        self.by_id[request_id] = taken, size
        self.size += size
        while len(self.by_id) > MAX_OF_AGENT or self.size > MAX_BYTES_OF_AGENT:
            self.drop(next(iter(self.by_id)))

    def drop(self, request_id: str) -> None:
        self.size -= self.by_id.pop(request_id)[1]


class TakeRequests(Generic[T]):
    """Answers the requests of agents, each once; a request that took nothing may be made again."""

    def __init__(self, id_of: Callable[[T], str], size_of: Callable[[T], int]) -> None:
        self._id_of = id_of
        self._size_of = size_of
        self._answers: dict[str, _AnswersOfAgent[T]] = {}
        self._size = 0
        self._under_way: dict[RequestKey, asyncio.Event] = {}

    async def answer(self, key: RequestKey, take: Callable[[], Awaitable[list[T]]]) -> list[T]:
        """Return what was taken for a request before, or take it now."""
        agent, request_id = key
        if not 1 <= len(request_id) <= MAX_REQUEST_ID:
            raise BadValue(f"request_id must have 1 to {MAX_REQUEST_ID} characters, got {len(request_id)}")
        while (other := self._under_way.get(key)) is not None:
            await other.wait()
        own = self._answers.get(agent)
        if own is not None and request_id in own.by_id:
            return own.by_id[request_id][0]
        over = self._under_way[key] = asyncio.Event()
        try:
            if taken := await take():
                self._remember(agent, request_id, taken)
            return taken
        finally:
            del self._under_way[key]
            over.set()

    def _remember(self, agent: str, request_id: str, taken: list[T]) -> None:
        size = _ENTRY_BYTES + sum(map(self._size_of, taken))
        if size > MAX_BYTES_OF_AGENT:
            return
        own = self._answers.setdefault(agent, _AnswersOfAgent())
        self._size -= own.size
        own.add(request_id, taken, size)
        self._size += own.size
        while self._size > MAX_BYTES:
            largest = max(self._answers, key=lambda name: self._answers[name].size)
            self._drop(largest, next(iter(self._answers[largest].by_id)))

    def _drop(self, agent: str, request_id: str) -> None:
        own = self._answers[agent]
        self._size -= own.size
        own.drop(request_id)
        self._size += own.size
        if not own.by_id:
            del self._answers[agent]

    def forget(self, agent: str, job_ids: Collection[str]) -> None:
        """Forget the requests of an agent for which these jobs were taken: they were returned."""
        own = self._answers.get(agent)
        for request_id, (taken, _) in [] if own is None else [*own.by_id.items()]:
            if any(self._id_of(each) in job_ids for each in taken):
                self._drop(agent, request_id)
