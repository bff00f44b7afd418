"""Lines on the replica: what reading from it costs, and how fast it takes in the primary's log."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple, Self

from bench import workload
from bench.environment import BenchEnvironment, reading
from bench.figures import Figure, Of, at_least, at_most
from bench.measure import alternate, median_us, ratios
from bench.programs.subprocess_driver import primary, start_program
from bench.raw import RawLog, raw_log
from tools.homes import MESH, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Store, open_store

_MB: Final = 1e6
_COPY_S: Final = 30.0
_PAGES_PER_S: Final = 4_000
_REWRITES: Final = 10


async def read_replica(environment: BenchEnvironment) -> list[Figure]:
    """A point query."""
    seconds = environment.pace.seconds
    with Server() as server:
        async with replace(environment, server=server).store(MESH_REPLICA) as store:
            await store.synced()
            sides = {
                "replica": lambda: median_us(reading(store), seconds),
                "primary": lambda: median_us(reading(store, fresh=True), seconds),
            }
            found = await alternate(sides, environment.pace.rounds)
    what = "one caller, replica: one row by its id, p50 / the primary's answer"
    return [
        Figure("read-replica", what, "us", found["replica"], found["primary"], at_most(50.0, Of.OURS)),
        Figure(
            "read-replica-gain",
            "the same: the primary's time to the replica's",
            "x",
            ratios(found["primary"], found["replica"]),
            target=at_least(30.0, Of.OURS),
        ),
    ]


# --- the first copy --------------------------------------------------------------------------------


class Copied(NamedTuple):
    """What a first copy took; the bare stream of the log, which keeps nothing, has no growth."""

    mb_per_s: float
    grown_mb: float = 0.0


async def first_copy(environment: BenchEnvironment) -> list[Figure]:
    """A database written bit by bit, and the same after a restart, when its log is one transaction."""
    with Server() as server, Server() as restarted:
        for each in (server, restarted):
            await _fill(replace(environment, server=each, folder=environment.folder / str(each.port)))
        restarted.kill()
        restarted.start()
        sides: dict[str, Callable[[], Awaitable[Copied]]] = {
            "ours": lambda: _copied(environment, server),
            "raw": lambda: _streamed(server),
            "ours, restarted": lambda: _copied(environment, restarted),
            "raw, restarted": lambda: _streamed(restarted),
        }
        found = await alternate(sides, environment.pace.rounds)
    what = f"first copy of {environment.pace.copied_mb} MB,"
    return [
        *_copy_figures("first-copy", f"{what} many transactions:", found["ours"], found["raw"]),
        *_copy_figures(
            "first-copy-restarted",
            f"{what} one transaction:",
            found["ours, restarted"],
            found["raw, restarted"],
        ),
    ]


def _copy_figures(name: str, what: str, ours: Sequence[Copied], raw: Sequence[Copied]) -> list[Figure]:
    return [
        Figure(
            name,
            f"{what} replica / bare stream of the log",
            "MB/s",
            [each.mb_per_s for each in ours],
            [each.mb_per_s for each in raw],
            at_least(60.0, Of.OURS),
        ),
        Figure(
            f"{name}-memory",
            f"{what} growth of the process at its peak",
            "MB",
            [each.grown_mb for each in ours],
            target=at_most(40.0, Of.OURS),
            worst=True,
        ),
    ]


async def _fill(environment: BenchEnvironment) -> None:
    pages = round(environment.pace.copied_mb * _MB / workload.PAGE)
    async with environment.store(MESH) as store:
        await workload.fill_pages(store, pages)


async def _copied(environment: BenchEnvironment, server: Server) -> Copied:
    """Copy in a separate process, so that its peak memory is its own."""
    with tempfile.TemporaryDirectory(dir=environment.folder) as folder:
        async with start_program("programs.first_copy", *primary(server)) as copier:
            await copier.ready()
            copier.send(folder)
            report = await copier.report(_COPY_S)
    if report["bytes"] < environment.pace.copied_mb * _MB:
        raise RuntimeError(f"the copy is not whole: {report}")
    return Copied(report["bytes"] / report["seconds"] / _MB, report["grown_bytes"] / _MB)


async def _streamed(server: Server) -> Copied:
    async with raw_log(server) as log:
        before = perf_counter()
        frames = await log.next_frame()
        async with LogReader(log, 0) as log_reader:
            await log_reader.until(frames)
        return Copied(frames * workload.PAGE / (perf_counter() - before) / _MB)


class LogReader:
    """A bare stream of the log, read and dropped while the context lasts."""

    def __init__(self, log: RawLog, first: int) -> None:
        self._log = log
        self._first = first
        self._came = 0
        self._more = asyncio.Event()

    async def _read(self) -> None:
        async with aclosing(self._log.stream(self._first)) as stream:
            async for came in stream:
                self._came = came
                self._more.set()

    async def until(self, frames: int) -> None:
        """Wait until this many frames have come."""
        async with asyncio.timeout(_COPY_S):
            while self._came < frames:
                self._more.clear()
                await self._more.wait()

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


# --- following -------------------------------------------------------------------------------------


async def following(environment: BenchEnvironment) -> list[Figure]:
    """While a writer writes as fast as the server lets it, and behind a writer that is done."""
    sides = {
        "alongside": lambda: _alongside(environment),
        "raw, alongside": lambda: _alongside_raw(environment),
        "behind": lambda: _behind(environment),
        "raw, behind": lambda: _behind_raw(environment),
        "alone": lambda: _alone(environment),
    }
    found = await alternate(sides, environment.pace.few_rounds)
    what = "following big transactions, frames:"
    return [
        Figure(
            "following-alongside",
            f"{what} replica / bare stream, while they are written",
            "1/s",
            found["alongside"],
            found["raw, alongside"],
            at_least(20_000.0, Of.OURS),
            notes={"written when nobody follows": statistics.median(found["alone"])},
        ),
        Figure(
            "following-behind",
            f"{what} replica / bare stream, catching up",
            "1/s",
            found["behind"],
            found["raw, behind"],
            at_least(20_000.0, Of.OURS),
        ),
    ]


async def _alongside(environment: BenchEnvironment) -> float:
    async with _open_pages(environment) as pages, pages.replica() as replica:
        before = perf_counter()
        await pages.rewrite()
        await replica.synced()
        seconds = perf_counter() - before
        return await pages.new_frames() / seconds


async def _alongside_raw(environment: BenchEnvironment) -> float:
    async with _open_pages(environment) as pages, pages.log_reader() as log_reader:
        before = perf_counter()
        await pages.rewrite()
        frames = await pages.new_frames()
        await log_reader.until(frames)
        return frames / (perf_counter() - before)


async def _behind(environment: BenchEnvironment) -> float:
    async with _open_pages(environment) as pages:
        async with pages.replica():
            pass
        await pages.rewrite()
        before = perf_counter()
        async with pages.replica():
            seconds = perf_counter() - before
        return await pages.new_frames() / seconds


async def _behind_raw(environment: BenchEnvironment) -> float:
    async with _open_pages(environment) as pages:
        await pages.rewrite()
        frames = await pages.new_frames()
        before = perf_counter()
        async with pages.log_reader() as log_reader:
            await log_reader.until(frames)
        return frames / (perf_counter() - before)


async def _alone(environment: BenchEnvironment) -> float:
    async with _open_pages(environment) as pages:
        before = perf_counter()
        await pages.rewrite()
        seconds = perf_counter() - before
        return await pages.new_frames() / seconds


class PageWriter:
    """Pages to write, on a server that has written nothing else."""

    def __init__(self, environment: BenchEnvironment, writer: Store, log: RawLog, begins_at: int) -> None:
        self._environment = environment
        self._writer = writer
        self._log = log
        self._begins_at = begins_at

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[Store]:
        """A store whose replica holds all that was written before."""
        async with await open_store(
            MESH_REPLICA.settings(self._environment.folder, self._environment.server)
        ) as store:
            await store.synced()
            yield store

    def log_reader(self) -> LogReader:
        """A bare stream of what is written from the beginning on."""
        return LogReader(self._log, self._begins_at)

    async def rewrite(self) -> None:
        """Write every page, several times over."""
        for _ in range(_REWRITES):
            await self._writer.write(workload.rewrite_pages())

    async def new_frames(self) -> int:
        """How many frames that took."""
        return await self._log.next_frame() - self._begins_at


@asynccontextmanager
async def _open_pages(environment: BenchEnvironment) -> AsyncIterator[PageWriter]:
    """In each round a new server: one that has written much would compact its log in the middle of it."""
    pages = round(environment.pace.seconds * _PAGES_PER_S)
    with Server() as server, tempfile.TemporaryDirectory(dir=environment.folder) as folder:
        environment = replace(environment, server=server, folder=Path(folder))
        async with (
            await open_store(MESH.settings(environment.folder, server)) as writer,
            raw_log(server) as log,
        ):
            await workload.fill_pages(writer, pages)
            yield PageWriter(environment, writer, log, await log.next_frame())
