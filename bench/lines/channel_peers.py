"""Lines on messages and on the start of jobs next to a peer's: how many, and how soon in another process."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, Target, at_least, at_most
from bench.measure import Pace, alternate
from bench.peers.channels.channel import Channel, ChannelService, Taken, stamp
from bench.peers.channels.registry import CHANNELS, JOBS, MESSAGES
from bench.programs.subprocess_driver import ProgramProcess, start_program

_IN_FLIGHT: Final = 16
_MANY: Final = 4_000  # for each second of a round
_ONE_BY_ONE: Final = 500
_PACED_S: Final = 0.5  # of pauses in each second of a round
_PAUSE_S: Final = 0.005
_IDLE_S: Final = 0.05  # a job is done by then, on any side
_LEAST: Final = 20
_WAIT_S: Final = 60.0
_OURS: Final = ("file", "sqld")


@dataclass(frozen=True, slots=True)
class _OpenChannel:
    """A channel of this process, and a process that takes."""

    channel: Channel
    taker: ProgramProcess

    async def taken(self) -> Taken:
        return Taken(*await self.taker.report(_WAIT_S))

    async def sent_per_second(self, pace: Pace) -> float:
        """Send one after the other; what was sent is taken afterwards."""
        count = _count(pace, _ONE_BY_ONE)
        before = perf_counter()
        for _ in range(count):
            await self.channel.send(stamp())
        spent_s = perf_counter() - before
        self.taker.send(str(count))
        await self.taken()
        return count / spent_s

    async def taken_per_second(self, pace: Pace) -> float:
        """Have many under way while the other process takes one by one."""
        each = max(1, _count(pace, _MANY) // _IN_FLIGHT)

        async def send() -> None:
            for _ in range(each):
                await self.channel.send(stamp())

        self.taker.send(str(each * _IN_FLIGHT))
        began_ns = stamp()
        await asyncio.gather(*(send() for _ in range(_IN_FLIGHT)))
        return each * _IN_FLIGHT / ((await self.taken()).done_ns - began_ns) * 1e9

    async def paced_delay_ms(self, pace: Pace) -> float:
        """Send with short pauses; return how long half of them took at most."""
        return await self._delay_ms(pace, _PAUSE_S)

    async def idle_delay_ms(self, pace: Pace) -> float:
        """Send when the one before has long been taken; return how long half of them took at most."""
        return await self._delay_ms(pace, _IDLE_S)

    async def _delay_ms(self, pace: Pace, pause_s: float) -> float:
        count = _count(pace, round(_PACED_S / pause_s))
        self.taker.send(str(count))
        for _ in range(count):
            await self.channel.send(stamp())
            await asyncio.sleep(pause_s)
        return statistics.median((await self.taken()).delays_ms)


def _count(pace: Pace, each_second: int) -> int:
    return max(_LEAST, round(pace.seconds * each_second))


@dataclass(frozen=True, slots=True)
class _Work:
    name: str
    what: str
    unit: str
    round: Callable[[_OpenChannel, Pace], Coroutine[Any, Any, float]]


_SENT: Final = _Work("sent", "sent one after the other", "1/s", _OpenChannel.sent_per_second)
_TAKEN: Final = _Work(
    "taken",
    f"with {_IN_FLIGHT} in flight, received one by one and acknowledged",
    "1/s",
    _OpenChannel.taken_per_second,
)
_DELAY: Final = _Work(
    "delay", "with pauses, from the call to the other process, p50", "ms", _OpenChannel.paced_delay_ms
)
_START: Final = _Work(
    "delay", "one at a time, from the call to the other process, p50", "ms", _OpenChannel.idle_delay_ms
)


@dataclass(frozen=True, slots=True)
class ChannelPeer:
    """A peer, and what ours is to reach next to it: by what is measured, and where ours is."""

    kind: str
    name: str
    works: tuple[_Work, ...]
    targets: Mapping[tuple[_Work, str], Target]

    @property
    def service(self) -> ChannelService:
        """What brings the other side's."""
        return CHANNELS[self.kind][self.name]

    @property
    def line(self) -> str:
        """The name of its line."""
        return f"{self.kind.removesuffix('s')}-channel-{self.name}"


CHANNEL_PEERS: Final = (
    ChannelPeer(
        MESSAGES,
        "redis",
        (_SENT, _TAKEN, _DELAY),
        {
            (_SENT, "file"): at_least(0.8),
            (_SENT, "sqld"): at_least(0.35),
            (_TAKEN, "file"): at_least(0.8),
            (_TAKEN, "sqld"): at_least(0.5),
            (_DELAY, "file"): at_most(2.0),
            (_DELAY, "sqld"): at_most(4.0),
        },
    ),
    ChannelPeer(MESSAGES, "nats", (_SENT, _TAKEN, _DELAY), {}),
    ChannelPeer(
        JOBS,
        "procrastinate",
        (_START,),
        {(_START, "file"): at_most(0.6), (_START, "sqld"): at_most(1.0)},
    ),
)


def compare_channel_with(
    peer: ChannelPeer,
) -> Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(environment: BenchEnvironment) -> Sequence[Found]:
        service = peer.service
        if why_not := service.why_not():
            return [LeftOut(peer.line, f"{peer.kind}, next to {service.title}", why_not)]
        async with _all_open(environment, peer) as channels:
            rounds = {
                work.name: await alternate(
                    {
                        name: partial(work.round, channel, environment.pace)
                        for name, channel in channels.items()
                    },
                    environment.pace.few_rounds,
                )
                for work in peer.works
            }
        return [
            Figure(
                f"{peer.line}-{work.name}-{name}",
                f"{peer.kind} {work.what}: {CHANNELS[peer.kind][name].title} / {service.title}",
                work.unit,
                rounds[work.name][name],
                rounds[work.name][service.name],
                peer.targets.get((work, name)),
            )
            for work in peer.works
            for name in _OURS
        ]

    return measure


@asynccontextmanager
async def _all_open(
    environment: BenchEnvironment, peer: ChannelPeer
) -> AsyncIterator[dict[str, _OpenChannel]]:
    async with AsyncExitStack() as stack:
        found: dict[str, _OpenChannel] = {}
        for name in (*_OURS, peer.name):
            service = CHANNELS[peer.kind][name]
            place = stack.enter_context(service.serve(environment.folder / name))
            channel = await stack.enter_async_context(service.open(place))
            taker = await stack.enter_async_context(
                start_program("peers.channels.process", peer.kind, name, place)
            )
            await taker.ready()
            found[name] = _OpenChannel(channel, taker)
        yield found
