"""Measure the inputs of the model: `python -m bench.scale.measure`, about two minutes.

It counts processor time, bytes and rows, and no wall time but the delay of messages: other programs on the
machine change little. The server's own counters say how many rows an operation reads and writes, as a hosted
server meters them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.machine import facts
from bench.scale.inputs import IDLE, JOB, LOCK, MESSAGE, Inputs, OperationCost, RelayCost
from tools.homes import MESH_REPLICA
from tools.sqld import Server, free_port
from vox_mesh import JobContext, Mesh
from vox_mesh.node import MeshNode

_CALLERS: Final = 16
_OPERATIONS: Final = 2_000
_IDLE_NODES: Final = 4
_IDLE_S: Final = 40.0
_AGENTS: Final = 1_000
_NODES: Final = 4
_RELAY_S: Final = 20.0
_FRAME_BYTES: Final = 4_120
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}


class Counters(NamedTuple):
    """What the server and this process have taken so far."""

    server_cpu_s: float
    own_cpu_s: float
    frames: int
    rows_read: int
    rows_written: int
    stored_bytes: int


class Meter:
    """Read the counters of a server and of this process."""

    def __init__(self, server: Server, admin_port: int) -> None:
        self._server = server
        self._admin_port = admin_port

    async def read(self, node: MeshNode) -> Counters:
        """Return the counters; `node` knows the position in the log."""
        stats = await asyncio.to_thread(self._stats)
        server_cpu_s = _cpu_s(self._server.pid)
        frames = node.store.replica_status.frame if node.store.replica_status is not None else 0
        rows = stats["rows_read_count"], stats["rows_written_count"], await _stored_bytes(node)
        return Counters(server_cpu_s, time.process_time(), frames or 0, *rows)

    def _stats(self) -> dict[str, int]:
        url = f"http://127.0.0.1:{self._admin_port}/v1/namespaces/default/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
        return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


async def _stored_bytes(node: MeshNode) -> int:
    pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    found: int = (await node.store.read(pages, fresh=True, timeout=30)).value
    return found


async def _measured(
    meter: Meter, node: MeshNode, work: Callable[[], Awaitable[object]], count: float
) -> OperationCost:
    """Return what one of `count` operations costs that the work does."""
    before = await meter.read(node)
    await work()
    after = await meter.read(node)
    server_s, own_s, frames, read, written, stored = (
        (late - early) / count for late, early in zip(after, before, strict=True)
    )
    return OperationCost(server_s, own_s, frames * _FRAME_BYTES, read, written, stored)


async def _by_callers(call: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(_OPERATIONS))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


async def _operations(server: Server, meter: Meter, folder: Path) -> dict[str, OperationCost]:
    settings = MESH_REPLICA.settings(folder, server, scope_id="operations", tick=5.0)
    async with Mesh.open(settings) as node:

        @node.worker.handles("noop")
        async def noop(context: JobContext) -> None:
            """Do nothing."""

        await node.worker.start(concurrency=_CALLERS, kinds=["noop"])

        async def jobs() -> None:
            scheduled: list[str] = []

            async def schedule(number: int) -> None:
                scheduled.append((await node.jobs.schedule("noop", {"n": number})).job_id)

            await _by_callers(schedule)
            await asyncio.gather(*(node.jobs.wait(job_id) for job_id in scheduled))

        async def messages() -> None:
            async def send(number: int) -> None:
                await node.messages.send("reader", _BODY, sender=f"writer-{number % _CALLERS}")

            sending = asyncio.create_task(_by_callers(send))
            seen = 0
            async with aclosing(node.messages.receive("reader")) as received:
                async for message in received:
                    await node.messages.ack(message)
                    seen += 1
                    if seen == _OPERATIONS:
                        break
            await sending

        async def pair(number: int) -> None:
            await node.locks.release(await node.locks.acquire(f"task:{number}", agent="ada"))

        async def locks() -> None:
            await _by_callers(pair)

        found = {}
        for name, work in ((JOB, jobs), (MESSAGE, messages), (LOCK, locks)):
            found[name] = await _measured(meter, node, work, _OPERATIONS)
        return found


@asynccontextmanager
async def _nodes(
    server: Server, folder: Path, count: int, scope: str, **more: object
) -> AsyncIterator[Sequence[MeshNode]]:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                Mesh.open(
                    MESH_REPLICA.settings(folder / str(number), server, scope_id=scope, tick=5.0, **more)
                )
            )
            for number in range(count)
        ]
        yield nodes


async def _idle(server: Server, meter: Meter, folder: Path) -> OperationCost:
    async with _nodes(server, folder, _IDLE_NODES, "idle") as nodes:
        await asyncio.sleep(10)  # until all have written what they write once
        return await _measured(meter, nodes[0], lambda: asyncio.sleep(_IDLE_S), _IDLE_NODES * _IDLE_S)


async def _relay(server: Server, meter: Meter, folder: Path) -> RelayCost:
    """Let a thousand agents on a few nodes send each other a message in the time, and receive it."""
    delays: list[float] = []
    token = secrets.token_hex(32)
    async with _nodes(server, folder, _NODES, "relay", http=True, token=token) as nodes:
        done = asyncio.Event()

        async def receive(number: int) -> None:
            node = nodes[number % _NODES]
            async with aclosing(node.messages.receive(f"agent-{number}")) as received:
                async for message in received:
                    delays.append((time.monotonic_ns() - message.body["at"]) / 1e6)
                    await node.messages.ack(message)
                    if len(delays) == _AGENTS:
                        done.set()

        receiving = [asyncio.create_task(receive(number)) for number in range(_AGENTS)]
        await asyncio.sleep(10)  # until their inboxes are announced

        async def send(number: int) -> None:
            await asyncio.sleep(_RELAY_S * number / _AGENTS)
            body = {"at": time.monotonic_ns(), **_BODY}
            to = f"agent-{(number * 7 + 1) % _AGENTS}"  # mostly on another node
            await nodes[number % _NODES].messages.send(to, body, sender=f"agent-{number}")

        before, began = await meter.read(nodes[0]), time.monotonic()
        await asyncio.gather(*(send(number) for number in range(_AGENTS)))
        async with asyncio.timeout(60):
            await done.wait()
        seconds, after = time.monotonic() - began, await meter.read(nodes[0])
        relayed = sum(_brought(node) for node in nodes)
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)
    return RelayCost(
        agents=_AGENTS,
        nodes=_NODES,
        seconds=seconds,
        messages=len(delays),
        relayed=relayed,
        server_cores=(after.server_cpu_s - before.server_cpu_s) / seconds,
        node_cores=(after.own_cpu_s - before.own_cpu_s) / seconds,
        log_bytes_s=(after.frames - before.frames) * _FRAME_BYTES / seconds,
        delay_p50_ms=statistics.median(delays),
        delay_p99_ms=statistics.quantiles(delays, n=100)[98],
    )


def _brought(node: MeshNode) -> int:
    outbox = node.messages._sender.outbox  # noqa: SLF001 - nothing else counts it
    return 0 if outbox is None else outbox.counts["brought"]


async def measure(folder: Path) -> Inputs:
    """Measure all inputs on a new server."""
    admin_port = free_port()
    with Server(more_flags=("--admin-listen-addr", f"127.0.0.1:{admin_port}")) as server:
        meter = Meter(server, admin_port)
        operations = await _operations(server, meter, folder / "operations")
        operations[IDLE] = await _idle(server, meter, folder / "idle")
        relay = await _relay(server, meter, folder / "relay")
        found = facts(server)
    machine = f"{found['cores']} cores, {found['arch']}, Python {found['python']}, {found['server']}"
    return Inputs(machine, os.getloadavg()[0], operations, relay)


def main() -> None:
    """Measure, and keep the result for the page."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder))).save()


if __name__ == "__main__":
    main()
