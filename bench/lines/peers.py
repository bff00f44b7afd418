"""Lines on peers: the same jobs, which do nothing, by another queue and by ours, in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.environment import Ground
from bench.figures import Figure, Found, LeftOut
from bench.limits import raw_limit
from bench.measure import alternate
from bench.peers.ours import OURS_IN_FILE, OURS_ON_SERVER
from bench.peers.peer import Done, Peer
from bench.programs.subprocess_driver import Companion, companion

_WAIT_S: Final = 120.0
_LONGER: Final = 2
_LEAST: Final = 20
_MANY: Final = 100

Rates = dict[str, float]
"""Jobs a second: `enqueued`, and `done` by so many workers."""


@dataclass(frozen=True, slots=True)
class _Shop:
    """A queue with a process that enqueues, and processes that work."""

    peer: Peer
    clerk: Companion
    workers: Sequence[Companion]

    async def round(self, count: int, at_once: int, staffs: Sequence[int]) -> Rates:
        """Enqueue so many for each number of workers, and have them done; only the first are timed."""
        rates = {"enqueued": await self._enqueued(count, at_once)}
        for number, staff in enumerate(staffs):
            if number:
                await self._enqueued(count, _MANY)
            rates[f"done-{staff}"] = await self._done(self.workers[:staff], count)
        return rates

    async def _enqueued(self, count: int, at_once: int) -> float:
        self.clerk.tell(f"put {count} {at_once}")
        return count / float(await self.clerk.report(_WAIT_S))

    async def _done(self, workers: Sequence[Companion], count: int) -> float:
        for worker in workers:
            worker.tell("work")
        reports = [Done(*await worker.report(_WAIT_S)) for worker in workers]
        did = sum(report.jobs for report in reports)
        if did != count:
            raise RuntimeError(f"{self.peer.title}: {did} jobs were done, not {count}")
        spent_ns = max(each.last_ns for each in reports if each.jobs) - min(each.began_ns for each in reports)
        return count / (spent_ns / 1e9)


@asynccontextmanager
async def _shop(ground: Ground, peer: Peer, workers: int) -> AsyncIterator[_Shop]:
    async with AsyncExitStack() as stack:
        place = stack.enter_context(peer.serve(ground.folder / peer.name))
        hands = []
        for _ in range(workers + 1):  # one after the other: not every queue can be opened by two at once
            hands.append(await stack.enter_async_context(companion("peers.hand", peer.name, place)))
            await hands[-1].ready()
        yield _Shop(peer, hands[0], hands[1:])


def beside(peer: Peer) -> Callable[[Ground], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(ground: Ground) -> Sequence[Found]:
        if why_not := peer.why_not():
            return [LeftOut(f"peer-{peer.name}", peer.title, why_not)]
        return await _beside(ground, peer)

    return measure


async def _beside(ground: Ground, peer: Peer) -> list[Figure]:
    ours = OURS_ON_SERVER if peer.on_server else OURS_IN_FILE
    staff = max(peer.workers)
    async with (
        _shop(ground, ours, staff) as our_shop,
        _shop(ground, peer, staff) as their_shop,
        raw_limit(ground.folder, ground.server if peer.on_server else None, ground.pace.seconds) as raw,
    ):

        async def insert() -> Rates:
            return {"raw": await raw.per_second()}

        def side(shop: _Shop) -> Callable[[], Coroutine[Any, Any, Rates]]:
            count = max(_LEAST, round(shop.peer.jobs_each_second * ground.pace.seconds * _LONGER))
            return lambda: shop.round(count, peer.at_once, peer.workers)

        sides = {"ours": side(our_shop), "theirs": side(their_shop), "raw": insert}
        found = await alternate(sides, ground.pace.few_rounds)
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
