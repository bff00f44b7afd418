"""Lines on agents: taking and reporting jobs over the socket of a node, and what grants cost."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

import aiohttp

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, at_most
from bench.lines.service import up_node
from bench.measure import alternate, median_us
from tools.homes import FILE as FILE_HOME
from vox_mesh import Mesh
from vox_mesh.http.local_socket import FILE
from vox_mesh.store.slots import folder_of_slot

_KIND: Final = "bench.agent"
_JOBS: Final = 400
_QUICK: Final = 4  # times fewer jobs, for a short look
_AT_ONCE: Final = 100
_AGENTS: Final = 64
_TARGET_MS: Final = {"file": 6.0, "sqld": 10.0}
_TARGET_RATE: Final = 1_000.0
_UNLIMITED: Final = {"VOX_MESH_ENABLED": "1", "VOX_MESH_RATE_LIMIT": "100000"}


class _Client:
    """An agent's connection to its node."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, path: str, body: dict[str, Any], agent: str = "bench") -> Any:
        async with self._session.post(
            f"http://node{path}", json=body, headers={"Vox-Agent": agent}
        ) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def look(self) -> None:
        async with self._session.get("http://node/livez") as answer:
            await answer.read()

    async def schedule(self, count: int) -> None:
        for start in range(0, count, _AT_ONCE):
            manifests = [{"kind": _KIND}] * min(_AT_ONCE, count - start)
            await self.post("/v1/jobs", {"manifests": manifests, "new": True})

    async def work(self, agent: str) -> bool:
        """Take a job and report it; return whether there was one."""
        for taken in await self.post("/v1/jobs/take", {"kinds": [_KIND]}, agent):
            report = {"claim_token": taken["claim_token"], "outcome": "succeeded"}
            await self.post(f"/v1/jobs/{taken['job_id']}/report", report, agent)
            return True
        return False


async def taking(environment: BenchEnvironment) -> list[Figure]:
    """One agent, and 64 at a time, on a file and on a server; next to as many requests that do nothing."""
    server = environment.sqld
    on_server = {"VOX_DB_URL": server.url, "VOX_DB_TOKEN": server.token}
    return [*await _taking(environment, "file", {}), *await _taking(environment, "sqld", on_server)]


async def _taking(environment: BenchEnvironment, store: str, database: Mapping[str, str]) -> list[Figure]:
    jobs = _JOBS if environment.pace.settled else _JOBS // _QUICK
    alone_ms, bare_ms, together, single = [], [], [], []
    folder = environment.folder / f"agents-{store}"
    home = folder / ".vox"
    async with up_node(folder, {**_UNLIMITED, **database, "VOX_MESH_HOME": str(home)}):
        connector = aiohttp.UnixConnector(str(folder_of_slot(home, "1") / FILE), limit=_AGENTS)
        async with aiohttp.ClientSession(connector=connector) as session:
            client = _Client(session)
            for _ in range(environment.pace.few_rounds):
                await client.schedule(2 * jobs)
                took_ms = [await _timed(lambda: client.work("bench")) for _ in range(jobs)]
                alone_ms.append(statistics.median(took_ms))
                single.append(1e3 * jobs / sum(took_ms))
                bare_ms.append(statistics.median([await _timed(lambda: _twice(client)) for _ in range(jobs)]))
                began = perf_counter()
                await asyncio.gather(*(_until_none(client, f"agent-{each}") for each in range(_AGENTS)))
                together.append(jobs / (perf_counter() - began))
    what = f"{store}, over the socket of a node: take and report a job"
    return [
        Figure(
            f"agent-alone-{store}",
            f"{what}, one agent / two requests that do nothing",
            "ms",
            alone_ms,
            bare_ms,
            at_most(_TARGET_MS[store], Of.OURS),
        ),
        Figure(
            f"agent-64-{store}",
            f"{what}, 64 agents / one agent",
            "jobs/s",
            together,
            single,
            at_least(_TARGET_RATE, Of.OURS) if store == "file" else None,
        ),
    ]


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


async def _twice(client: _Client) -> None:
    await client.look()
    await client.look()


async def _until_none(client: _Client, agent: str) -> None:
    while await client.work(agent):
        pass
