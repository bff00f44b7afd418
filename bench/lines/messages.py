"""Lines on messages: how soon one is in another process, and how many are sent, received and acknowledged."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, delay_figures
from bench.limits import raw_limit
from bench.measure import alternate
from bench.programs.message_receiver import FOLLOW, INBOX, RECEIVE, SCOPE, stamped
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.node import MeshNode

_FOLLOWED: Final = 200  # messages for each second of a round
_SENDERS: Final = 16
_IN_FLIGHT: Final = 4
_SENT: Final = 8_192  # messages for each second of a round
_WAIT_S: Final = 60.0
_BODY: Final = {
    "task": "review the change to the parser, and say what is missing in its tests",
    "files": ["src/parser/lexer.py", "src/parser/grammar.py", "tests/test_parser.py"],
    "branch": "agent/planner/42",
    "step": 42,
}


@dataclass(frozen=True, slots=True)
class SenderAndReceiver:
    """A node that sends, and a process that receives."""

    node: MeshNode
    receiver: ProgramProcess


@asynccontextmanager
async def _open_both(
    environment: BenchEnvironment, home: HomeCase, *, relay: bool = True
) -> AsyncIterator[SenderAndReceiver]:
    server = environment.server if home.needs_server else None
    settings = home.settings(environment.folder, server, scope_id=SCOPE, http=relay)
    without = [] if relay else ["--without-relay"]
    async with (
        Mesh.open(settings) as node,
        start_program(
            "programs.message_receiver", environment.folder, *without, *primary(server)
        ) as receiver,
    ):
        await receiver.ready()
        yield SenderAndReceiver(node, receiver)


# --- how soon ----------------------------------------------------------------------------------------


async def by_relay(environment: BenchEnvironment) -> list[Figure]:
    """To a process that the relay reaches."""
    return await _delay(environment, "relay", "brought by the relay", 6.0, 30.0)


async def by_watch(environment: BenchEnvironment) -> list[Figure]:
    """To a process that finds messages only in its replica."""
    return await _delay(environment, "watch", "found by watch alone", 8.0, 40.0)


async def _delay(
    environment: BenchEnvironment, name: str, how: str, p50_ms: float, p99_ms: float
) -> list[Figure]:
    times = round(environment.pace.seconds * _FOLLOWED)
    with Server() as server:
        own = replace(environment, server=server)
        async with (
            _open_both(own, MESH_REPLICA, relay=name == "relay") as both,
            raw_limit(own.folder, server, environment.pace.seconds) as raw,
        ):
            await _follow(both, is_reached=name == "relay")

            async def insert_ms() -> list[float]:
                return [await raw.p50_ms()]

            sides = {"ours": lambda: _delays_ms(both, times), "raw": insert_ms}
            found = await alternate(sides, environment.pace.rounds)
    rounds, inserts = found["ours"], [each[0] for each in found["raw"]]
    what = f"from the call of send to the program of another process, {how},"
    return delay_figures(f"message-{name}", what, rounds, (raw.what, inserts), (p50_ms, p99_ms))


async def _follow(both: SenderAndReceiver, *, is_reached: bool) -> None:
    both.receiver.send(FOLLOW)
    await both.receiver.report(_WAIT_S)
    await both.node.store.synced()
    if (await both.node.messages.directory.find_receiver(FOLLOW) is not None) is not is_reached:
        raise RuntimeError("messages would not go the way that is to be measured")


async def _delays_ms(both: SenderAndReceiver, times: int) -> list[float]:
    """Send one when the one before was acknowledged; how long each took."""
    found: list[float] = []
    for _ in range(times):
        await both.node.messages.send(FOLLOW, stamped(), sender="sender")
        found.append(await both.receiver.report(_WAIT_S))
    return found


# --- how many ----------------------------------------------------------------------------------------


async def rates_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server, with a replica on both sides."""
    with Server() as server:
        return await _rates(replace(environment, server=server), MESH_REPLICA, "sqld", (5_000.0, 4_000.0))


async def rates_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file that both have open."""
    return await _rates(replace(environment, server=None), FILE, "file", (8_000.0, 5_000.0))


async def _rates(
    environment: BenchEnvironment, home: HomeCase, name: str, reach: tuple[float, float]
) -> list[Figure]:
    each = max(1, round(environment.pace.seconds * _SENT) // (_SENDERS * _IN_FLIGHT))
    sent: dict[str, list[float]] = {INBOX: [], RECEIVE: []}
    async with (
        _open_both(environment, home) as both,
        raw_limit(environment.folder, environment.server, environment.pace.seconds) as raw,
    ):

        async def mail(receiver: str) -> float:
            """Send many, then have them received; how many of these a second."""
            count = each * _SENDERS * _IN_FLIGHT
            sent[receiver].append(count / await _send_all(both.node, receiver, each))
            both.receiver.send(f"{receiver} {count}")
            return count / float(await both.receiver.report(_WAIT_S))

        sides = {INBOX: lambda: mail(INBOX), "raw": raw.per_second, RECEIVE: lambda: mail(RECEIVE)}
        found = await alternate(sides, environment.pace.rounds)
    what = f"16 senders with 4 in flight, {name}: messages"
    return [
        Figure(
            f"message-sent-{name}",
            f"{what} sent / {raw.what}",
            "1/s",
            sent[INBOX][1:],  # the first only warmed up
            found["raw"],
            at_least(reach[0], Of.OURS),
        ),
        Figure(
            f"message-acked-{name}",
            f"{what} received in batches and acknowledged, in another process / {raw.what}",
            "1/s",
            found[INBOX],
            found["raw"],
            at_least(reach[1], Of.OURS),
        ),
        Figure(
            f"message-received-{name}",
            f"{what} received one by one, acknowledged in the background / {raw.what}",
            "1/s",
            found[RECEIVE],
            found["raw"],
            notes={"sent to a node that the relay reaches": statistics.median(sent[RECEIVE][1:])},
        ),
    ]


async def _send_all(node: MeshNode, receiver: str, each: int) -> float:
    """Send this many from every sender on each of its tasks; return the seconds that took."""

    async def send(sender: str) -> None:
        for _ in range(each):
            await node.messages.send(receiver, _BODY, sender=sender)

    before = perf_counter()
    senders = [f"sender-{number}" for number in range(_SENDERS)] * _IN_FLIGHT
    await asyncio.gather(*map(send, senders))
    return perf_counter() - before
