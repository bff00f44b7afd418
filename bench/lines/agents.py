"""Lines on agents: taking and reporting jobs over the socket of a node, and what grants cost."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, at_most
from bench.lines.service import up_node
from bench.measure import alternate, median_us
from bench.programs.http_wire import HttpWire
from tools.homes import FILE as FILE_HOME
from vox_mesh import Mesh
from vox_mesh.nodes.node_sockets import FILE
from vox_mesh.store.slots import folder_of_slot

_KIND: Final = "bench.agent"
_JOBS: Final = 400
_QUICK: Final = 4  # times fewer jobs, for a short look
_AT_ONCE: Final = 100
_AGENTS: Final = 64
_TOGETHER: Final = 3  # times more jobs for many agents, so that they are busy most of the time
_ALL: Final = sys.maxsize
_TAKE: Final = {"kinds": [_KIND]}
_TARGET_MS: Final = {"file": 6.0, "sqld": 10.0}
_TARGET_RATE: Final = 1_000.0
_UNLIMITED: Final = {"VOX_MESH_ENABLED": "1", "VOX_MESH_RATE_LIMIT": "100000"}


class _Agent:
    """An agent, on its connection to a node."""

    def __init__(self, wire: HttpWire) -> None:
        self._wire = wire

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = await self._wire.ask("POST", path, orjson.dumps(body))
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"{path} was answered with {answer.status}: {answer.body.decode()}")
        return orjson.loads(answer.body)

    async def look_twice(self) -> None:
        await self._wire.ask("GET", "/livez")
        await self._wire.ask("GET", "/livez")

    async def schedule(self, count: int) -> None:
        for start in range(0, count, _AT_ONCE):
            manifests = [{"kind": _KIND}] * min(_AT_ONCE, count - start)
            await self.post("/v1/jobs", {"manifests": manifests, "new": True})

    async def take(self) -> list[Any]:
        return cast(list[Any], await self.post("/v1/jobs/take", _TAKE))

    async def work(self) -> None:
        """Take a job and report it."""
        (taken,) = await self.take()
        await self.post(f"/v1/jobs/{taken['job_id']}/report", _report(taken))

    async def go_on(self, taken: list[Any]) -> list[Any]:
        """Report a job that was taken, and take the next one in the same request."""
        answer = await self.post(f"/v1/jobs/{taken[0]['job_id']}/next", {**_report(taken[0]), "take": _TAKE})
        return cast(list[Any], answer["taken"])

    async def work_on(self, most: int) -> list[float]:
        """Work on job after job, up to this many; return how many ms each took."""
        took_ms: list[float] = []
        taken = await self.take()
        while taken and len(took_ms) < most:
            began = perf_counter()
            taken = await self.go_on(taken)
            took_ms.append((perf_counter() - began) * 1e3)
        for each in taken:  # none stays taken
            await self.post(f"/v1/jobs/{each['job_id']}/report", _report(each))
        return took_ms


def _report(taken: Any) -> dict[str, Any]:
    return {"claim_token": taken["claim_token"], "outcome": "succeeded"}


async def taking(environment: BenchEnvironment) -> list[Figure]:
    """One agent, and 64 at a time, on a file and on a server; next to as many requests that do nothing."""
    server = environment.sqld
    on_server = {"VOX_DB_URL": server.url, "VOX_DB_TOKEN": server.token}
    return [*await _taking(environment, "file", {}), *await _taking(environment, "sqld", on_server)]


async def _taking(environment: BenchEnvironment, store: str, database: Mapping[str, str]) -> list[Figure]:
    jobs = _JOBS if environment.pace.settled else _JOBS // _QUICK
    alone_ms, bare_ms, next_ms, together, single = [], [], [], [], []
    folder = environment.folder / f"agents-{store}"
    home = folder / ".vox"
    async with up_node(folder, {**_UNLIMITED, **database, "VOX_MESH_HOME": str(home)}):
        socket = folder_of_slot(home, "1") / FILE
        for _ in range(environment.pace.few_rounds):
            async with HttpWire.to_socket(socket, "bench") as wire:
                agent = _Agent(wire)
                await agent.schedule(2 * jobs + 1)  # one more is taken as the last one is reported
                took_ms = [await _timed(agent.work) for _ in range(jobs)]
                alone_ms.append(statistics.median(took_ms))
                bare_ms.append(statistics.median([await _timed(agent.look_twice) for _ in range(jobs)]))
                went_ms = await agent.work_on(jobs)
                next_ms.append(statistics.median(went_ms))
                single.append(1e3 * jobs / sum(went_ms))
                await agent.schedule(_TOGETHER * jobs)
            together.append(await _rate_of_many(socket))
    what = f"{store}, over the socket of a node"
    target = at_most(_TARGET_MS[store], Of.OURS)
    return [
        Figure(
            f"agent-alone-{store}",
            f"{what}: take and report a job, one agent / two requests that do nothing",
            "ms",
            alone_ms,
            bare_ms,
            target,
        ),
        Figure(
            f"agent-next-{store}",
            f"{what}: report a job and take the next in one request, one agent / in two requests",
            "ms",
            next_ms,
            alone_ms,
            target,
        ),
        Figure(
            f"agent-64-{store}",
            f"{what}: report a job and take the next, 64 agents / one agent",
            "jobs/s",
            together,
            single,
            at_least(_TARGET_RATE, Of.OURS) if store == "file" else None,
        ),
    ]


async def _rate_of_many(socket: Path) -> float:
    """Return how many jobs a second many agents work on until there are none left."""
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(HttpWire.to_socket(socket, f"agent-{each}"))
            for each in range(_AGENTS)
        ]
        began = perf_counter()
        took = await asyncio.gather(*(_Agent(wire).work_on(_ALL) for wire in wires))
        return sum(map(len, took)) / (perf_counter() - began)


async def granted(environment: BenchEnvironment) -> list[Figure]:
    """Measure a lock pair of an agent with a grant, next to one of an agent that needs none."""
    seconds = environment.pace.seconds
    async with Mesh.open(FILE_HOME.settings(environment.folder, None)) as node:
        await node.grants.admit("granted")
        await node.grants.issue("granted", ["lock.acquire on task:*"])

        def pairs(agent: str) -> Callable[[], Awaitable[float]]:
            async def pair() -> None:
                await node.locks.release(await node.locks.acquire(f"task:{agent}", agent=agent))

            return lambda: median_us(pair, seconds)

        sides = {agent: pairs(agent) for agent in ("granted", "free")}
        found = await alternate(sides, environment.pace.rounds)
    what = "one caller, file: a lock taken and released by a grant / without one, p50"
    return [Figure("lock-pair-granted", what, "us", found["granted"], found["free"], at_most(1.05))]


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await work()
    return (perf_counter() - began) * 1e3
