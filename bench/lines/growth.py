"""Lines on growth: the cost of a tick, append, claim and delivery at several sizes.

Each size has its own database, and all are measured in turn; a figure is the ratio to the smallest.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from bench.bulk_rows import fill_jobs, fill_log, fill_messages
from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, Point
from bench.measure import alternate
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, OpKind
from vox_mesh.node import MeshNode

_NODES: Final = (1, 4, 16, 64)
_ROWS: Final = (1_000, 10_000, 100_000, 1_000_000)
_QUICK_SIZES: Final = 2
_SHORTER: Final = 0.3  # of a round elsewhere: there are many of them
_CALM_TICK: Final = "1h"  # nodes send heartbeats only on request
_PENDING: Final = 100
_SENDERS: Final = 10
_LEASE_MS: Final = 60_000
_NOTE: Final = "bench.note"
_KINDS: Final = [f"bench.kind-{number}" for number in range(10)]
_INBOX: Final = "crowded"
_LEFT_OUT: Final = "it takes too long for a short look; `--all` measures it"


# --- what one of each costs --------------------------------------------------------------------------


async def _tick(node: MeshNode) -> float:
    before = perf_counter()
    await node.run_once()
    return perf_counter() - before


async def _append(node: MeshNode) -> float:
    before = perf_counter()
    await node.oplog.append(_NOTE, {"step": 42})
    return perf_counter() - before


async def _claim(node: MeshNode) -> float:
    """Look for a job and claim it; it is given back afterwards."""
    before = perf_counter()
    (job,) = await node.jobs.queries.ready(_KINDS, 1)
    item = {"job_id": job.job_id, "claim_token": job.claim_token + 1}
    outcomes = await node.store.write_all(node.jobs.transitions.take([item], [item], _LEASE_MS))
    took = perf_counter() - before
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    await node.jobs.yield_job(job.job_id)
    return took


async def _deliver(node: MeshNode) -> float:
    """Send a message, find it in its inbox, and acknowledge it."""
    before = perf_counter()
    await node.messages.send(_INBOX, {"step": 42}, sender="sender-0")
    batch = await node.messages.poll_inbox_from_db(_INBOX)
    await node.messages.ack(*batch)
    took = perf_counter() - before
    if len(batch) != 1:
        raise RuntimeError(f"{len(batch)} messages were found, not the one that was sent")
    return took


class _Cost(NamedTuple):
    name: str
    what: str
    once: Callable[[MeshNode], Awaitable[float]]

    async def p50_us(self, node: MeshNode, seconds: float) -> float:
        """Return the median time of one, over this many seconds."""
        took: list[float] = []
        end = perf_counter() + seconds
        while not took or perf_counter() < end:
            took.append(await self.once(node))
        return statistics.median(took) * 1e6


_COSTS: Final = (
    _Cost("tick", "one tick", _tick),
    _Cost("append", "one op appended", _append),
    _Cost("claim", "one job found and claimed", _claim),
    _Cost("delivery", "one message sent, found and acknowledged", _deliver),
)


# --- with what it grows ------------------------------------------------------------------------------


@asynccontextmanager
async def _node(home: HomeCase, folder: Path, server: Server | None) -> AsyncIterator[MeshNode]:
    settings = home.settings(folder, server, scope_id="bench", tick=_CALM_TICK)
    async with Mesh.open(settings) as node:
        node.oplog.register(OpKind(_NOTE))
        yield node


class _Place:
    """A database of its own, and the node that is measured there."""

    def __init__(self, stack: AsyncExitStack, home: HomeCase, folder: Path) -> None:
        self._stack = stack
        self._home = home
        self._folder = folder
        self._server = stack.enter_context(Server()) if home.needs_server else None

    async def join(self) -> MeshNode:
        """One more node; they stay to the end."""
        return await self._stack.enter_async_context(_node(self._home, self._folder, self._server))


Enlarge = Callable[[_Place, MeshNode, int], Awaitable[None]]
"""Makes a place as large as that."""


async def _with_nodes(place: _Place, node: MeshNode, size: int) -> None:
    for _ in range(size - 1):
        await place.join()


async def _with_jobs(place: _Place, node: MeshNode, size: int) -> None:
    await fill_jobs(node, size // 2)
    await fill_jobs(node, size // 2, pending=True)


async def _with_messages(place: _Place, node: MeshNode, size: int) -> None:
    await fill_messages(node, _INBOX, size, _SENDERS, ended=True)


async def _with_log(place: _Place, node: MeshNode, size: int) -> None:
    await fill_log(node, size)


class _Axis(NamedTuple):
    name: str
    of: str
    sizes: Sequence[int]
    home: HomeCase
    enlarge: Enlarge


async def nodes_file(environment: BenchEnvironment) -> list[Found]:
    """With nodes, all in this process, in a file."""
    return await _grown(environment, _Axis("nodes-file", "nodes in a file", _NODES, FILE, _with_nodes))


async def nodes_sqld(environment: BenchEnvironment) -> list[Found]:
    """With nodes, all in this process, on a server."""
    return await _grown(environment, _Axis("nodes-sqld", "nodes on a server", _NODES, MESH, _with_nodes))


async def jobs(environment: BenchEnvironment) -> list[Found]:
    """With jobs, half of them pending."""
    return await _grown(environment, _Axis("jobs", "jobs in the table", _ROWS, FILE, _with_jobs))


async def messages(environment: BenchEnvironment) -> list[Found]:
    """With messages to the same inbox, which have ended."""
    return await _grown(environment, _Axis("messages", "messages in the table", _ROWS, FILE, _with_messages))


async def log(environment: BenchEnvironment) -> list[Found]:
    """With entries in the log."""
    return await _grown(environment, _Axis("log", "entries in the log", _ROWS, FILE, _with_log))


async def _grown(environment: BenchEnvironment, axis: _Axis) -> list[Found]:
    sizes = axis.sizes if environment.pace.grows else axis.sizes[:_QUICK_SIZES]
    seconds = environment.pace.seconds * _SHORTER
    async with AsyncExitStack() as stack:
        nodes: dict[int, MeshNode] = {}
        for size in sizes:
            place = _Place(stack, axis.home, environment.folder / f"{axis.name}-{size}")
            nodes[size] = await place.join()
            await fill_jobs(nodes[size], _PENDING, pending=True)
            await axis.enlarge(place, nodes[size], size)
        sides = {
            (cost.name, size): partial(cost.p50_us, node, seconds)
            for cost in _COSTS
            for size, node in nodes.items()
        }
        found = await alternate(sides, environment.pace.few_rounds)
    figures = [
        Figure(
            f"growth-{axis.name}-{cost.name}-{size}",
            f"{cost.what}, p50; {axis.of}: {size:,} / {sizes[0]:,}",
            "us",
            found[cost.name, size],
            found[cost.name, sizes[0]],
            point=Point(f"{axis.name}-{cost.name}", axis.of, size),
        )
        for cost in _COSTS
        for size in sizes
    ]
    left = [
        LeftOut(f"growth-{axis.name}-{size}", f"{size:,} {axis.of}", _LEFT_OUT)
        for size in axis.sizes
        if size not in sizes
    ]
    return [*figures, *left]
