"""Lines on locks: what taking and releasing one costs, how fast it goes from hand to hand, and the guard.

As a program, this is the process that waits for a lock: what it reports says when it had it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, Target, at_least, at_most
from bench.limits import Limit, raw_limit
from bench.measure import Call, alternate, blocking_median_us, median_us, rate
from bench.programs.subprocess_driver import add_primary, node_settings, primary, start_program
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Settings, run
from vox_mesh.locks.path_guard import obstacles
from vox_mesh.model.locks.records import Holder
from vox_mesh.node import MeshNode

_CALLERS: Final = 64
_RIVALS: Final = 8
_WAIT_S: Final = 30.0
_SCOPE: Final = "bench"
_HAND_OVERS: Final = 40  # for each second of a round
_BATON: Final = "task:baton"
_HELD: Final = 10_000
_PATHS: Final = 1_000


@asynccontextmanager
async def _node(environment: BenchEnvironment, home: HomeCase) -> AsyncIterator[MeshNode]:
    server = environment.server if home.needs_server else None
    async with Mesh.open(home.settings(environment.folder, server, scope_id=_SCOPE)) as node:
        yield node


def _limit(environment: BenchEnvironment, home: HomeCase) -> AbstractAsyncContextManager[Limit]:
    return raw_limit(
        environment.folder, environment.server if home.needs_server else None, environment.pace.seconds
    )


def _pairs(node: MeshNode) -> Callable[[], Call]:
    """Makes callers that take and release a lock of their own."""
    numbers = count()

    def caller() -> Call:
        key = f"task:{next(numbers)}"

        async def pair() -> None:
            await node.locks.release(await node.locks.acquire(key))

        return pair

    return caller


async def _pair_rate(node: MeshNode, callers: int, seconds: float) -> float:
    make = _pairs(node)
    rates = await asyncio.gather(*(rate(make(), seconds) for _ in range(callers)))
    return sum(rates)


# --- one lock each -----------------------------------------------------------------------------------


async def pairs_sqld(environment: BenchEnvironment) -> list[Figure]:
    """Many callers on a server, each with a key of its own."""
    seconds = environment.pace.seconds
    async with _node(environment, MESH) as node, _limit(environment, MESH) as raw:
        sides = {"ours": lambda: _pair_rate(node, _CALLERS, seconds), "raw": raw.per_second}
        found = await alternate(sides, environment.pace.rounds)
    what = f"64 callers, sqld: locks taken and released / {raw.what}"
    target = at_least(8_000.0, Of.OURS)
    return [Figure("lock-pairs-sqld", what, "1/s", found["ours"], found["raw"], target)]


async def one_caller_sqld(environment: BenchEnvironment) -> list[Figure]:
    """One lock at a time on a server."""
    seconds = environment.pace.seconds
    async with _node(environment, MESH) as node, _limit(environment, MESH) as raw:
        pair = _pairs(node)()
        sides = {"ours": lambda: median_us(pair, seconds), "raw": raw.p50_ms}
        found = await alternate(sides, environment.pace.rounds)
    what = f"one caller, sqld: a lock taken and released, p50 / {raw.what}, p50"
    inserts = [each * 1e3 for each in found["raw"]]
    return [Figure("lock-pair-sqld", what, "us", found["ours"], inserts, at_most(3.5))]


async def pairs_file(environment: BenchEnvironment) -> list[Figure]:
    """One caller and many in a file."""
    seconds = environment.pace.seconds
    async with _node(environment, FILE) as node, _limit(environment, FILE) as raw:
        sides = {
            "one": lambda: _pair_rate(node, 1, seconds),
            "many": lambda: _pair_rate(node, _CALLERS, seconds),
            "raw": raw.per_second,
        }
        found = await alternate(sides, environment.pace.rounds)
    what = f"locks taken and released / {raw.what}"
    return [
        Figure(
            "lock-pair-file",
            f"one caller, file: {what}",
            "1/s",
            found["one"],
            found["raw"],
            target=at_least(2_000.0, Of.OURS),
        ),
        Figure(
            "lock-pairs-file",
            f"64 callers, file: {what}",
            "1/s",
            found["many"],
            found["raw"],
            target=at_least(10_000.0, Of.OURS),
        ),
    ]


# --- one lock for all --------------------------------------------------------------------------------


async def contended(environment: BenchEnvironment) -> list[Figure]:
    """Eight callers who all want the same key, in a file and on a server."""
    return [
        *await _contended(environment, FILE, "file", at_least(2_000.0, Of.OURS)),
        *await _contended(environment, MESH_REPLICA, "sqld", at_least(800.0, Of.OURS)),
    ]


async def _contended(
    environment: BenchEnvironment, home: HomeCase, name: str, target: Target
) -> list[Figure]:
    turns: list[list[int]] = []
    async with _node(environment, home) as node, _limit(environment, home) as raw:

        async def hand_overs() -> float:
            had, seconds = await _turns(node, environment.pace.seconds)
            turns.append(had)
            return sum(had) / seconds

        found = await alternate({"ours": hand_overs, "raw": raw.per_second}, environment.pace.rounds)
    what = f"8 callers for one key, {name}:"
    return [
        Figure(
            f"lock-contended-{name}",
            f"{what} hand-overs / {raw.what}",
            "1/s",
            found["ours"],
            found["raw"],
            target,
        ),
        Figure(
            f"lock-share-{name}",
            f"{what} furthest of a caller from its even share",
            "x",
            [_furthest_from_share(each) for each in turns[1:]],  # the first only warmed up
            target=at_most(0.2, Of.OURS),
            worst=True,
        ),
    ]


async def _turns(node: MeshNode, seconds: float) -> tuple[list[int], float]:
    """How often each of the callers had the lock, and in how many seconds."""
    turns = [0] * _RIVALS
    start = perf_counter()
    end = start + seconds

    async def rival(number: int) -> None:
        while perf_counter() < end:
            async with node.locks.hold(_BATON, agent=f"rival-{number}", wait=_WAIT_S):
                turns[number] += 1

    await asyncio.gather(*map(rival, range(_RIVALS)))
    return turns, perf_counter() - start


def _furthest_from_share(turns: list[int]) -> float:
    share = sum(turns) / len(turns)
    return max(abs(each - share) for each in turns) / share


# --- from process to process -------------------------------------------------------------------------


async def hand_over_mesh(environment: BenchEnvironment) -> list[Figure]:
    """On a server, to a process that follows it with a replica."""
    with Server() as server:
        return await _hand_over(replace(environment, server=server), MESH_REPLICA, "mesh", 10.0)


async def hand_over_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file that both have open."""
    return await _hand_over(environment, FILE, "file", 15.0)


async def _hand_over(environment: BenchEnvironment, home: HomeCase, name: str, p50_ms: float) -> list[Figure]:
    times = max(3, round(environment.pace.seconds * _HAND_OVERS))
    server = environment.server if home.needs_server else None
    longest: list[float] = []
    async with (
        _node(environment, home) as node,
        start_program("lines.locks", environment.folder, *primary(server)) as waiter,
        _limit(environment, home) as raw,
    ):
        await waiter.ready()

        async def delay_ms() -> float:
            found: list[float] = []
            for _ in range(times):
                lock = await node.locks.acquire(_BATON, wait=_WAIT_S)
                waiter.send("wait")
                await _until(lambda: _is_awaited(node))
                released = time.monotonic()
                await node.locks.release(lock)
                found.append((await waiter.report(_WAIT_S) - released) * 1e3)
            longest.append(max(found))
            return statistics.median(found)

        rounds = await alternate({"ours": delay_ms, "raw": raw.p50_ms}, environment.pace.rounds)
    return [
        Figure(
            f"lock-hand-over-{name}",
            f"{name}: from the release to the next waiter, in another process, p50 / {raw.what}, p50",
            "ms",
            rounds["ours"],
            rounds["raw"],
            at_most(p50_ms, Of.OURS),
            notes={"longest": max(longest[1:])},
        )
    ]


async def _is_awaited(node: MeshNode) -> bool:
    return any(holder.waiting for holder in await node.locks.holders([_BATON]))


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not await is_so():  # noqa: ASYNC110 - another process does it, without a notification
            await asyncio.sleep(0.002)


async def _serve(settings: Settings) -> None:
    async with Mesh.open(settings) as node:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            async with node.locks.hold(_BATON, wait=_WAIT_S):
                taken = time.monotonic()
            print(orjson.dumps(taken).decode(), flush=True)


# --- the guard ---------------------------------------------------------------------------------------


async def guard(environment: BenchEnvironment) -> list[Figure]:
    """Find the holder of one of many paths, with many patterns locked."""
    held = [_holder(key) for key in _held_keys()]
    paths = [f"src/area{i % 97}/part{i % 13}/module_{i}.py" for i in range(_PATHS)]
    found = [
        blocking_median_us(lambda: obstacles(paths, held, "me"), environment.pace.seconds) / 1e3
        for _ in range(environment.pace.rounds)
    ]
    what = "1,000 paths compared with 10,000 held patterns"
    return [Figure("lock-guard", what, "ms", found, target=at_most(50.0, Of.OURS))]


def _held_keys() -> list[str]:
    forms = ("src/area{0}/own{1}/**", "src/area{0}/*_{1}.rs", "docs/{1}/?.md", "**/gen_{1}.py")
    return [f"file:{forms[i % len(forms)].format(i % 97, i)}" for i in range(_HELD)]


def _holder(key: str) -> Holder:
    return Holder(key, 1, "node", "other", False, "", "", "", 0, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_primary(parser)
    arguments = parser.parse_args()
    run(_serve(node_settings(arguments.folder, arguments.primary, scope_id=_SCOPE)))
