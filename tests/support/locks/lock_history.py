"""What is done to locks, written down with its times: by tasks of the test, or by processes of their own."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import aiohttp

from proof.checkers.lock_model import Kind, LockAction, lock_fault
from proof.history import Step
from vox_mesh import Mesh, MeshError, Script, Statement, Store
from vox_mesh.errors import LockHeld, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.store.script import new_key

WRITES: Final = "seq INTEGER PRIMARY KEY AUTOINCREMENT, lock_key, token, id"
"""What is written under a lock: `seq` is the order of commits."""

_REFUSALS: Final = (LockHeld, StaleFence)
_PACE_S: Final = 0.02
_WAITS: Final = (0.0, 0.0, 0.2, 1.0)

Tell = Callable[..., None]
Facts = dict[str, Any]


class Recorder:
    """Does things to locks, and tells each when it begins and when it ends."""

    def __init__(self, mesh: Mesh, actor: str, tell: Tell, table: str = "", service: str = "") -> None:
        self._locks = mesh.locks
        self._store = mesh.store
        self._actor = actor
        self._tell = tell
        self._table = table
        self._service = service

    async def acquire(self, key: str, ttl: float, wait: float) -> Lock | None:
        """Take a key; `None` if we have it not, as far as we know."""
        async with self._telling(Kind.ACQUIRE, key, ttl=ttl) as facts:
            lock = await self._locks.acquire(key, agent=self._actor, ttl=ttl, wait=wait)
            facts["token"] = lock.fence_token
            return lock
        return None

    async def renew(self, lock: Lock) -> None:
        """Hold it for longer."""
        async with self._telling(Kind.RENEW, lock.keys[0], token=lock.fence_token, ttl=lock.ttl):
            await self._locks.renew(lock)

    async def release(self, lock: Lock) -> None:
        """Let go of it."""
        async with self._telling(Kind.RELEASE, lock.keys[0], token=lock.fence_token) as facts:
            if not await self._locks.release(lock):
                facts["step"] = Step.NO

    async def write(self, lock: Lock) -> None:
        """Write a row under it."""
        async with self._telling(Kind.WRITE, lock.keys[0], token=lock.fence_token) as facts:
            row = Statement(
                f"INSERT INTO {self._table} (lock_key, token, id) VALUES (?, ?, ?)",
                (lock.keys[0], lock.fence_token, facts["id"]),
            )
            await self._store.write(Script(self._locks.guard(lock), row))

    async def look(self, key: str) -> None:
        """See who holds it."""
        async with self._telling(Kind.LOOK, key) as facts:
            holders = await self._locks.holders([key])
            facts["token"] = holders[0].fence_token if holders else None

    async def put(self, lock: Lock) -> int:
        """Change something outside of the database; the status that it answers with."""
        headers = {"Fence-Token": str(lock.fence_token)}
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{self._service}/{lock.keys[0]}", headers=headers) as response,
        ):
            return response.status

    @asynccontextmanager
    async def _telling(self, kind: Kind, key: str, **facts: Any) -> AsyncIterator[Facts]:
        """Tell of an operation, which may change the facts; what goes wrong with it is one of them."""
        facts |= {"id": new_key(), "kind": kind, "key": key, "actor": self._actor, "step": Step.UNKNOWN}
        self._tell(**facts, began=time.monotonic())
        facts["step"] = Step.OK
        try:
            yield facts
        except _REFUSALS:
            facts["step"] = Step.NO
        except MeshError as error:
            facts |= {"step": Step.UNKNOWN, "error": error.line}
        self._tell(**facts, ended=time.monotonic())


async def roam(
    recorder: Recorder, keys: Sequence[str], ttl: float, random: Random, is_over: Callable[[], bool]
) -> None:
    """Take locks and do things under them, in time and too late, until it is over."""
    while not is_over():
        lock = await recorder.acquire(random.choice(keys), ttl, random.choice(_WAITS))
        if lock is not None:
            under: list[Callable[[Lock], Awaitable[object]]] = [recorder.write, recorder.renew]
            if recorder._service:
                under.append(recorder.put)
            for do in random.choices(under, k=random.randrange(4)):
                await asyncio.sleep(random.random() * _PACE_S)
                await do(lock)
            if random.random() < 0.8:  # otherwise it is forgotten, and ends by itself
                await recorder.release(lock)
            if random.random() < 0.3:  # too late, or nearly so
                await random.choice(under)(lock)
        if random.random() < 0.3:
            await recorder.look(random.choice(keys))
        await asyncio.sleep(random.random() * _PACE_S)


async def histories(store: Store, table: str, reports: Iterable[Facts]) -> dict[str, list[LockAction]]:
    """What was done to each key; of the writes it is known what became of them, by their rows."""
    rows = await store.read(f"SELECT id FROM {table}", fresh=True)
    written = {row["id"] for row in rows}
    facts: dict[str, Facts] = {}
    for each in reports:
        if "id" in each:
            facts.setdefault(each["id"], {}).update(each)
    found: dict[str, list[LockAction]] = defaultdict(list)
    for each in facts.values():
        kind, answer = Kind(each["kind"]), Step(each["step"])
        is_known = answer is not Step.UNKNOWN
        if kind is Kind.WRITE:
            is_written = each["id"] in written
            assert not is_known or is_written == (answer is Step.OK), f"{each}, but the table says otherwise"
            answer = Step.OK if is_written else answer
        if answer is Step.UNKNOWN and kind in (Kind.WRITE, Kind.LOOK):
            continue  # it changed nothing, and reported nothing
        action = LockAction(
            *(kind, answer, each["began"], each["ended"] if is_known else math.inf),
            *(each.get("token"), each.get("ttl", 0.0)),
            actor=each["actor"],
            id=each["id"],
        )
        found[each["key"]].append(action)
    return found


def faults(found: dict[str, list[LockAction]]) -> list[str]:
    """What can't have been so, of each key."""
    checked = {key: lock_fault(actions) for key, actions in found.items()}
    return [f"{key}: {fault}" for key, fault in checked.items() if fault is not None]


async def falling_writes(store: Store, table: str) -> list[str]:
    """The rows that were written under an older token than one before them."""
    rows = await store.read(f"SELECT lock_key, token FROM {table} ORDER BY seq", fresh=True)
    return falling((row["lock_key"], row["token"]) for row in rows)


def falling(tokens: Iterable[tuple[str, int]]) -> list[str]:
    """The tokens that are older than one of the same key before them."""
    highest: dict[str, int] = {}
    fallen = []
    for key, token in tokens:
        if token < highest.get(key, 0):
            fallen.append(f"{key}: {token} after {highest[key]}")
        highest[key] = max(token, highest.get(key, 0))
    return fallen
