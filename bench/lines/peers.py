"""Lines on peers: the same jobs, which do nothing, by another queue and by ours, in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut
from bench.limits import raw_limit
from bench.measure import alternate
from bench.peers.ours import OURS_IN_FILE, OURS_ON_SERVER
from bench.peers.peer import Done, Peer
from bench.programs.subprocess_driver import ProgramProcess, start_program

_WAIT_S: Final = 120.0
_LONGER: Final = 2
_LEAST: Final = 20
_MANY: Final = 100

Rates = dict[str, float]
"""Jobs per second: `enqueued`, and `done` by each number of workers."""


@dataclass(frozen=True, slots=True)
class _OpenQueue:
    """A queue with a process that enqueues, and processes that work."""

    peer: Peer
    enqueuer: ProgramProcess
    workers: Sequence[ProgramProcess]

    async def round(self, count: int, at_once: int, worker_counts: Sequence[int]) -> Rates:
        """Enqueue this many for each number of workers, and run them; only the first enqueueing is timed."""
        rates = {"enqueued": await self._enqueue(count, at_once)}
        for number, workers_count in enumerate(worker_counts):
            if number:
                await self._enqueue(count, _MANY)
            rates[f"done-{workers_count}"] = await self._run_jobs(self.workers[:workers_count], count)
        return rates

    async def _enqueue(self, count: int, at_once: int) -> float:
        self.enqueuer.send(f"put {count} {at_once}")
        return count / float(await self.enqueuer.report(_WAIT_S))

    async def _run_jobs(self, workers: Sequence[ProgramProcess], count: int) -> float:
        for worker in workers:
            worker.send("work")
        reports = [Done(*await worker.report(_WAIT_S)) for worker in workers]
        did = sum(report.jobs for report in reports)
        if did != count:
            raise RuntimeError(f"{self.peer.title}: {did} jobs were done, not {count}")
        spent_ns = max(each.last_ns for each in reports if each.jobs) - min(each.began_ns for each in reports)
        return count / (spent_ns / 1e9)


@asynccontextmanager
async def _open_queue(environment: BenchEnvironment, peer: Peer, workers: int) -> AsyncIterator[_OpenQueue]:
    async with AsyncExitStack() as stack:
        place = stack.enter_context(peer.serve(environment.folder / peer.name))
        processes = []
        for _ in range(workers + 1):  # one after the other: not every queue can be opened by two at once
            processes.append(
                await stack.enter_async_context(start_program("peers.queue_process", peer.name, place))
            )
            await processes[-1].ready()
        yield _OpenQueue(peer, processes[0], processes[1:])


def compare_with(peer: Peer) -> Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(environment: BenchEnvironment) -> Sequence[Found]:
        if why_not := peer.why_not():
            return [LeftOut(f"peer-{peer.name}", peer.title, why_not)]
        return await _compare(environment, peer)

    return measure


async def _compare(environment: BenchEnvironment, peer: Peer) -> list[Figure]:
    ours = OURS_ON_SERVER if peer.on_server else OURS_IN_FILE
    workers_count = max(peer.workers)
    async with (
        _open_queue(environment, ours, workers_count) as ours_queue,
        _open_queue(environment, peer, workers_count) as theirs_queue,
        raw_limit(
            environment.folder, environment.server if peer.on_server else None, environment.pace.seconds
        ) as raw,
    ):

        async def insert() -> Rates:
            return {"raw": await raw.per_second()}

        def side(queue: _OpenQueue) -> Callable[[], Coroutine[Any, Any, Rates]]:
            count = max(_LEAST, round(queue.peer.jobs_each_second * environment.pace.seconds * _LONGER))
            return lambda: queue.round(count, peer.at_once, peer.workers)

        sides = {"ours": side(ours_queue), "theirs": side(theirs_queue), "raw": insert}
        found = await alternate(sides, environment.pace.few_rounds)
    way = "one at a time" if peer.at_once == 1 else f"{peer.at_once} at a time"
    whats = {"enqueued": f"enqueued by one process, {way}"}
    whats |= {f"done-{n}": f"done by {n} worker process{'es' if n > 1 else ''}" for n in peer.workers}
    inserts = sorted(each["raw"] for each in found["raw"])
    return [
        Figure(
            f"peer-{peer.name}-{name}",
            f"jobs {what}: {ours.title} / {peer.title}",
            "1/s",
            [each[name] for each in found["ours"]],
            [each[name] for each in found["theirs"]],
            notes={raw.what: inserts[len(inserts) // 2]},
            remarks={"version": peer.version, "keeps": peer.keeps, "killed": peer.killed},
        )
        for name, what in whats.items()
    ]
