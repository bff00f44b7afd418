"""Lines on locks next to a peer's: one caller, several, and several who all want the same key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, Target, at_least
from bench.measure import alternate, rate
from bench.peers.locks import (
    CALLERS,
    ETCD,
    OURS_IN_FILE,
    OURS_ON_SERVER,
    POSTGRES_ADVISORY,
    POSTGRES_TABLE,
    REDIS,
    LockService,
    Pair,
)

_OURS: Final = (OURS_IN_FILE, OURS_ON_SERVER)
_WHATS: Final = {
    "one": "locks taken and released by one caller",
    "many": f"locks taken and released by {CALLERS} callers, each with its own key",
    "contended": f"turns of {CALLERS} callers who want the same lock",
}


@dataclass(frozen=True, slots=True)
class LockPeer:
    """A peer, and what ours is to reach next to it: by what is measured, and where ours is."""

    service: LockService
    targets: Mapping[tuple[str, str], Target] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The name of its line."""
        return f"lock-peer-{self.service.name}"


LOCK_PEERS: Final = (
    LockPeer(REDIS, {("contended", "file"): at_least(1.8)}),
    LockPeer(POSTGRES_TABLE, {("one", "file"): at_least(1.3), ("many", "file"): at_least(2.0)}),
    LockPeer(POSTGRES_ADVISORY),
    LockPeer(
        ETCD,
        {
            ("one", "sqld"): at_least(1.6),
            ("many", "sqld"): at_least(2.5),
            ("contended", "sqld"): at_least(2.0),
        },
    ),
)


def compare_locks_with(
    peer: LockPeer,
) -> Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(environment: BenchEnvironment) -> Sequence[Found]:
        if why_not := peer.service.why_not():
            return [LeftOut(peer.line, f"locks, next to {peer.service.title}", why_not)]
        async with _all_open(environment, (*_OURS, peer.service)) as callers:
            rounds = {
                work: await alternate(
                    {name: partial(_turns, work, pairs, environment) for name, pairs in callers.items()},
                    environment.pace.few_rounds,
                )
                for work in _WHATS
            }
        return [
            Figure(
                f"{peer.line}-{work}-{ours.name}",
                f"{what}: {ours.title} / {peer.service.title}",
                "1/s",
                rounds[work][ours.name],
                rounds[work][peer.service.name],
                peer.targets.get((work, ours.name)),
            )
            for work, what in _WHATS.items()
            for ours in _OURS
        ]

    return measure


@asynccontextmanager
async def _all_open(
    environment: BenchEnvironment, services: Sequence[LockService]
) -> AsyncIterator[dict[str, Sequence[Pair]]]:
    """The callers of these services, by the name of the service."""
    async with AsyncExitStack() as stack:
        places = [
            stack.enter_context(service.serve(environment.folder / service.name)) for service in services
        ]
        yield {
            service.name: await stack.enter_async_context(service.open(place))
            for service, place in zip(services, places, strict=True)
        }


async def _turns(work: str, pairs: Sequence[Pair], environment: BenchEnvironment) -> float:
    callers = pairs[:1] if work == "one" else pairs
    keys = [f"task:{'baton' if work == 'contended' else number}" for number in range(len(callers))]
    rates = [
        rate(partial(pair, key), environment.pace.seconds) for pair, key in zip(callers, keys, strict=True)
    ]
    return sum(await asyncio.gather(*rates))
