"""Lines on wakes: what messages to one receiver cost a node in which a thousand others are idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter, process_time, thread_time
from typing import Final, NamedTuple

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.node import MeshNode

_RECEIVERS: Final = 1_000
_MESSAGES: Final = 50
_QUICK: Final = 10  # times fewer receivers, for a short look
_SAMPLE_S: Final = 0.001
_QUIET_S: Final = 1.0
_WAIT_S: Final = 120.0
_CPU_TARGET_S: Final = 0.5
_STALL_TARGET_MS: Final = 20.0


class Cost(NamedTuple):
    """CPU time of the process, and the longest stall of its event loop: by the clock, and in CPU time.

    The latter leaves out what other processes of the machine take.
    """

    cpu_s: float
    stall_ms: float
    busy_ms: float


async def idle_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server, with a replica."""
    with Server() as server:
        return await _idle(replace(environment, server=server), MESH_REPLICA, "sqld")


async def idle_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _idle(replace(environment, server=None), FILE, "file")


async def _idle(environment: BenchEnvironment, home: HomeCase, name: str) -> list[Figure]:
    receivers = _RECEIVERS if environment.pace.settled else _RECEIVERS // _QUICK
    async with Mesh.open(home.settings(environment.folder, environment.server)) as node:
        async with _receiving(node, 1):
            alone = [await _cost(node) for _ in range(environment.pace.few_rounds)]
        async with _receiving(node, receivers):
            found = [await _cost(node) for _ in range(environment.pace.few_rounds)]
    what = f"{name}: {_MESSAGES} messages to one of {receivers:,} idle receivers of a node / to its only one,"
    return [
        Figure(
            f"message-idle-{name}-cpu",
            f"{what} CPU time of the node in all",
            "s",
            [each.cpu_s for each in found],
            [each.cpu_s for each in alone],
            at_most(_CPU_TARGET_S, Of.OURS),
        ),
        Figure(
            f"message-idle-{name}-stall",
            f"{what} longest stall of its event loop",
            "ms",
            [each.stall_ms for each in found],
            [each.stall_ms for each in alone],
            at_most(_STALL_TARGET_MS, Of.OURS),
            notes={"longest in CPU time": max(each.busy_ms for each in found)},
        ),
    ]


@asynccontextmanager
async def _receiving(node: MeshNode, receivers: int) -> AsyncIterator[None]:
    """Let this many agents receive, and wait until they are idle."""

    async def receive(agent: str) -> None:
        async for message in node.messages.receive(agent):
            await node.messages.ack(message)

    tasks = [asyncio.create_task(receive(f"agent-{number}")) for number in range(receivers)]
    try:
        await _quiet(node)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _quiet(node)


async def _quiet(node: MeshNode) -> None:
    """Wait until nothing was committed for a while."""
    count = -1
    while count != node.store.change_count:
        count = node.store.change_count
        await asyncio.sleep(_QUIET_S)


async def _cost(node: MeshNode) -> Cost:
    """Send messages, each when the one before was acknowledged."""
    sampling = asyncio.create_task(_longest_stall_ms(done := asyncio.Event()))
    await asyncio.sleep(0)
    before = process_time()
    for number in range(_MESSAGES):
        message = await node.messages.send("agent-0", {"step": number}, sender="sender")
        if not await node.messages.wait_for_ack(message, _WAIT_S):
            raise RuntimeError("a message was not acknowledged")
    spent = process_time() - before
    done.set()
    return Cost(spent, *await sampling)


async def _longest_stall_ms(done: asyncio.Event) -> tuple[float, float]:
    longest = busiest = 0.0
    while not done.is_set():
        before, busy_before = perf_counter(), thread_time()
        await asyncio.sleep(_SAMPLE_S)
        longest = max(longest, perf_counter() - before - _SAMPLE_S)
        busiest = max(busiest, thread_time() - busy_before)
    return longest * 1e3, busiest * 1e3
