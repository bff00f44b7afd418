"""Admission control: how many requests of each sort run at a time, in total and of each credential.

A request that finds no room waits in a bounded queue until a deadline, and is then refused. Each sort has a
pool of its own, so requests of one sort never keep those of another one out. Of a credential, few run at a
time, and credentials take turns: one that sends as much as it can does not keep the others out. Where few
run at all, the turn of an agent is limited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from vox_mesh.http.access import Credential
from vox_mesh.http.problems import Problem
from vox_mesh.store.slices import resting


class Load(StrEnum):
    """What a request costs the node."""

    WRITE = "write"
    """A write; the store queues these itself."""

    READ = "read"
    """A query with a bounded answer."""

    SCAN = "scan"
    """Reads and checks everything there is."""

    STREAM = "stream"
    """Sends everything there is, as fast as the client reads."""

    EVENTS = "events"
    """Listens to events until it leaves."""

    WAIT = "wait"
    """A read that waits for a change; one that does not wait is like any other."""

    LOCK_WAIT = "lock_wait"
    """Waits for a lock; one that does not wait is like any other write."""

    TAKE = "take"
    """Waits for a job; one that does not wait is like any other write."""


class PoolLimits(NamedTuple):
    """The limits of a pool."""

    total: int
    each: int
    """The requests of a credential; a read-only one, and each agent, has a quarter of it."""

    queue: int = 0
    """The requests of a credential that may wait for room."""

    wait_s: float = 0.0
    """How long they wait."""

    of_agents: int | None = None
    """The requests of all agents together: they leave room for the owner's side."""

    turn_s: float | None = None
    """How long a request of an agent may run while one of another credential waits."""


_REST_S: Final = 0.002
_UNLIMITED: Final = nullcontext()
_PART: Final = 4
_LIMITS: Final = {
    Load.READ: PoolLimits(total=32, each=16, queue=64, wait_s=10.0),
    Load.SCAN: PoolLimits(total=2, each=1, queue=4, wait_s=30.0, of_agents=1, turn_s=10.0),
    Load.STREAM: PoolLimits(total=4, each=2),
    Load.EVENTS: PoolLimits(total=64, each=48),
    Load.WAIT: PoolLimits(total=256, each=192),
    Load.LOCK_WAIT: PoolLimits(total=256, each=256),
    Load.TAKE: PoolLimits(total=256, each=256),
}


class AdmissionPool:
    """The running requests of one sort."""

    def __init__(self, load: Load, limits: PoolLimits) -> None:
        self._load = load
        self._limits = limits
        self._room = asyncio.Semaphore(limits.total)
        self._room_of_agents = asyncio.Semaphore(limits.of_agents or limits.total)
        self._turns: dict[asyncio.Timeout, tuple[str, float]] = {}
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._queued: dict[str, int] = {}

    @asynccontextmanager
    async def place(self, credential: Credential) -> AsyncIterator[None]:
        """Take a place in the pool. Raise 503 if there is none in time."""
        share = self._share_of(credential)
        with ExitStack() as kept:
            # What people who have signed in alike may use together is no more than one of them may.
            names = dict.fromkeys((credential.name, credential.account))
            rooms = [kept.enter_context(self._room_of(name, share)) for name in names]
            async with self._place_in(rooms, credential):
                yield

    @contextmanager
    def _room_of(self, name: str, share: int) -> Iterator[asyncio.Semaphore]:
        """Keep the room of a name while a request uses it: people choose names, without a limit."""
        room = self._rooms.setdefault(name, asyncio.Semaphore(share))
        self._users[name] += 1
        try:
            yield room
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                for each in (self._users, self._rooms, self._queued):
                    each.pop(name, None)

    @asynccontextmanager
    async def _place_in(
        self, own: Sequence[asyncio.Semaphore], credential: Credential
    ) -> AsyncIterator[None]:
        rooms = [*own, *([self._room_of_agents] if credential.agent is not None else ()), self._room]
        async with AsyncExitStack() as places:
            if any(each.locked() for each in rooms):
                await self._queue_for(credential, rooms, places)
            else:
                for each in rooms:
                    await places.enter_async_context(each)
            if credential.agent is None or self._limits.turn_s is None:
                yield
            else:
                async with self._turn(credential):
                    yield

    @asynccontextmanager
    async def _turn(self, credential: Credential) -> AsyncIterator[None]:
        """Run a request, but not longer than a turn if another client waits. Raise 503 if it was stopped."""
        turn = asyncio.timeout(None)
        try:
            async with turn:
                self._turns[turn] = credential.name, asyncio.get_running_loop().time()
                self._limit_turns()
                yield
        except TimeoutError:
            if not turn.expired():
                raise
            detail = f"request took longer than {self._limits.turn_s:g} s while other clients wait"
            hint = "ask for less, or retry later"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", detail, hint) from None
        finally:
            self._turns.pop(turn, None)

    def _limit_turns(self) -> None:
        """Have the running requests of agents end with their turns, if another client waits."""
        waiting = {name for name, count in self._queued.items() if count}
        for turn, (name, started) in self._turns.items():
            if waiting - {name} and turn.when() is None and self._limits.turn_s is not None:
                turn.reschedule(started + self._limits.turn_s)

    async def _queue_for(
        self, credential: Credential, rooms: Sequence[asyncio.Semaphore], places: AsyncExitStack
    ) -> None:
        """Wait for a place. A credential's own place comes first: so one request of each is in line."""
        queued = self._queued.get(credential.name, 0)
        if queued >= self._limits.queue:
            raise self._problem(credential)
        self._queued[credential.name] = queued + 1
        self._limit_turns()
        try:
            async with asyncio.timeout(self._limits.wait_s):
                for each in rooms:
                    await places.enter_async_context(each)
        except TimeoutError:
            raise self._problem(credential) from None
        finally:
            self._queued[credential.name] -= 1

    def _share_of(self, credential: Credential) -> int:
        is_part = credential.is_redacted or credential.agent is not None
        return max(1, self._limits.each // _PART) if is_part else self._limits.each

    def _problem(self, credential: Credential) -> Problem:
        detail = (
            f"requests of this sort ({self._load}) must be at most {self._limits.total} at a time,"
            f" and {self._share_of(credential)} of a {credential.account}"
        )
        return Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", detail, "retry later, or at another node"
        )


class Admission:
    """The pools of a service."""

    def __init__(self) -> None:
        self._pools = {load: AdmissionPool(load, limits) for load, limits in _LIMITS.items()}

    def place(self, load: Load, credential: Credential) -> AbstractAsyncContextManager[None]:
        """Take a place for a request with this load. Raise 503 if there is none in time."""
        pool = self._pools.get(load)
        return _UNLIMITED if pool is None else _rest_in(pool, credential)


@asynccontextmanager
async def _rest_in(pool: AdmissionPool, credential: Credential) -> AsyncIterator[None]:
    async with pool.place(credential):
        token = resting.set(_REST_S)
        try:
            yield
        finally:
            resting.reset(token)
