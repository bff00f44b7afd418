"""The hot paths: what one caller does again and again, on a node in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import workload
from tools.homes import FILE, MEMORY, HomeCase
from tools.sqld import Server
from vox_mesh import JobContext, Mesh, open_store
from vox_mesh.jobs.work.reports import Report, ReportedOutcome
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.taken_job import TakenJob
from vox_mesh.node import MeshNode

_KIND: Final = "bench.noop"
_AT_ONCE: Final = 100
_PLACES: Final = 64
_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}
_SUCCEEDED: Final = Report(ReportedOutcome.SUCCEEDED)


async def _nothing(_: int) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True)
class HotPath:
    """One operation. `prepare` makes what this many of them need; `run` does this many, one after another.

    `recorded`: how many are recorded at once, to find the floor.
    """

    name: str
    what: str
    run: Callable[[int], Awaitable[None]]
    prepare: Callable[[int], Awaitable[None]] = _nothing
    recorded: int = 20


def _repeat(call: Callable[[], Awaitable[object]]) -> Callable[[int], Awaitable[None]]:
    async def run(times: int) -> None:
        for _ in range(times):
            await call()

    return run


@asynccontextmanager
async def store_path(folder: Path, home: HomeCase, server: Server | None) -> AsyncIterator[HotPath]:
    """A write request of one insert, on a store that keeps no log."""
    async with await open_store(home.settings(folder, server)) as store:
        await workload.prepare(store, settled=False)
        name = {MEMORY: "memory", FILE: "file"}.get(home, "sqld")
        write = _repeat(lambda: store.write(workload.one_insert()))
        yield HotPath(f"write-{name}", f"a write request of one insert, {name}", write)


@asynccontextmanager
async def node_paths(folder: Path) -> AsyncIterator[list[HotPath]]:
    """All other paths, on a node in a file."""
    async with Mesh.open(FILE.settings(folder, None, scope_id="bench")) as node:
        yield [_lock_pair(node), _enqueue(node), *_agent_work(node), _worker(node), *_messages(node)]


def _lock_pair(node: MeshNode) -> HotPath:
    async def pair() -> None:
        await node.locks.release(await node.locks.acquire("task:42"))

    return HotPath("lock-pair", "a lock acquired and released", _repeat(pair))


def _enqueue(node: MeshNode) -> HotPath:
    return HotPath("enqueue", "a job scheduled", _repeat(lambda: node.jobs.schedule("queued", {"step": 42})))


async def _schedule(node: MeshNode, kind: str, count: int) -> None:
    for start in range(0, count, _AT_ONCE):
        steps = range(start, min(start + _AT_ONCE, count))
        await node.jobs.schedule_all([Manifest.of(kind=kind, payload={"step": step}) for step in steps])


def _agent_work(node: MeshNode) -> list[HotPath]:
    held: list[TakenJob] = []

    async def take() -> None:
        held.extend(await node.work.take("agent", [_KIND]))

    async def report() -> None:
        taken = held.pop()
        await node.work.report(taken.job.job_id, taken.claim_token, _SUCCEEDED)

    async def hold(count: int) -> None:
        await _schedule(node, _KIND, count)
        await _repeat(take)(count)

    return [
        HotPath(
            "claim", "a job taken by an agent", _repeat(take), lambda count: _schedule(node, _KIND, count)
        ),
        HotPath("completion", "a taken job reported", _repeat(report), hold),
    ]


def _worker(node: MeshNode) -> HotPath:
    left = 0
    is_over = asyncio.Event()

    @node.worker.handles("worked")
    async def do_nothing(_: JobContext) -> None:
        nonlocal left
        left -= 1
        if not left:
            is_over.set()

    async def run(times: int) -> None:
        nonlocal left
        left = times
        is_over.clear()
        async with node.worker.running(concurrency=_PLACES, kinds=["worked"]):
            await is_over.wait()

    what = "a job claimed, run and completed by a worker with 64 places"
    return HotPath("worker", what, run, lambda count: _schedule(node, "worked", count), recorded=200)


def _messages(node: MeshNode) -> list[HotPath]:
    async def send() -> None:
        await node.messages.send("receiver", _BODY, sender="sender")

    async def receive() -> None:
        await node.messages.ack(*await node.messages.inbox("receiver", limit=1))

    return [
        HotPath("send", "a message sent", _repeat(send)),
        HotPath("receive", "a message received and acknowledged", _repeat(receive), _repeat(send)),
    ]
