"""A program that locks: a real process that follows orders, line by line, and says what came of it.

`python -m tests.support.locks.lock_programs JOB`, with the settings in the environment. Each line on stdin is
an order, and all orders run side by side; when stdin ends, what is still under way is given up. A job's
`table` is where rows are written under locks, its `writer` is the agent, its `service` a resource outside.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any, Final

from tests.support.locks.lock_history import Recorder, roam
from tests.support.running.jobs import report
from vox_mesh import Mesh
from vox_mesh.model.locks.records import Lock

Facts = dict[str, Any]

_PATIENCE_S: Final = 60.0


async def orders() -> AsyncIterator[Facts]:
    """What the test wants, until it wants no more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        transport.close()


class LockExecutor:
    """Does what it is ordered to. The locks that it has are known by their first keys."""

    def __init__(self, mesh: Mesh, job: Facts) -> None:
        self._mesh = mesh
        self._agent: str = job["writer"]
        self._recorder = Recorder(mesh, self._agent, report, job["table"], job["service"])
        self._locks: dict[str, Lock] = {}
        self._rest = asyncio.Event()

    async def obey(self, order: Facts) -> None:
        """Carry out an order, and tell what came of it."""
        number, verb = order.pop("order"), order.pop("verb")
        try:
            facts = await getattr(self, f"do_{verb}")(**order)
        except Exception as error:  # whatever it is, the test must not wait forever
            facts = {"error": type(error).__name__, "line": repr(error)}
            facts["holders"] = [each.holder_agent for each in getattr(error, "holders", ())]
        report(order=number, **facts)

    def _has(self, lock: Lock) -> Facts:
        self._locks[lock.keys[0]] = lock
        return {"token": lock.fence_token, "expires_at": lock.expires_at}

    async def do_acquire(self, keys: list[str], ttl: float, wait: float) -> Facts:
        """Take the keys."""
        return self._has(await self._mesh.locks.acquire(keys, agent=self._agent, ttl=ttl, wait=wait))

    async def do_release(self, key: str) -> Facts:
        """Let go of a lock."""
        return {"was_held": await self._mesh.locks.release(self._locks[key])}

    async def do_renew(self, key: str, ttl: float) -> Facts:
        """Hold a lock for so long from now, which may be shorter than before."""
        return self._has(await self._mesh.locks.renew(self._locks[key], ttl=ttl))

    async def do_put(self, key: str) -> Facts:
        """Change something outside of the database."""
        return {"status": await self._recorder.put(self._locks[key])}

    async def do_write(self, key: str) -> Facts:
        """Write a row under a lock."""
        await self._recorder.write(self._locks[key])
        return {}

    async def do_hold(self, keys: list[str], ttl: float) -> Facts:
        """Hold the keys, renewed, until given up."""
        async with self._mesh.locks.hold(keys, agent=self._agent, ttl=ttl) as lock:
            report(held=lock.fence_token)
            await asyncio.Event().wait()
        return {}

    async def do_roam(self, keys: list[str], ttl: float, seed: int) -> Facts:
        """Do this and that to the keys, until it is time to rest."""
        random = Random(f"{seed} {self._agent}")
        await roam(self._recorder, keys, ttl, random, self._rest.is_set)
        return {}

    async def do_rest(self) -> Facts:
        """Roam no more."""
        self._rest.set()
        return {}

    async def do_want(self, agents: int, keys: list[str], seconds: float, seed: int) -> Facts:
        """Some agents, each of which wants three of the keys at once, again and again; how they fared."""
        end = time.monotonic() + seconds

        async def agent(name: str) -> Facts:
            random = Random(f"{seed} {name}")
            served, longest = 0, 0.0
            while (asked := time.monotonic()) < end:
                lock = await self._mesh.locks.acquire(random.sample(keys, 3), agent=name, wait=_PATIENCE_S)
                longest = max(longest, time.monotonic() - asked)
                served += 1
                await self._recorder.write(lock)
                await self._mesh.locks.release(lock)
            return {"served": served, "longest_s": longest}

        names = [f"{self._agent}-{n}" for n in range(agents)]
        return {"agents": await asyncio.gather(*(agent(name) for name in names))}


async def serve(job: Facts) -> None:
    """Be a node that follows orders."""
    async with Mesh.open() as mesh:
        hand = LockExecutor(mesh, job)
        report(node=mesh.identity.node_id)
        doing: set[asyncio.Task[None]] = set()
        try:
            async for order in orders():
                doing.add(asyncio.create_task(hand.obey(order)))
        finally:
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)


def main() -> int:
    """Do the job. Interrupted, the program ends with the code that a shell expects."""
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
