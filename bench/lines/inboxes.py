"""Lines on large inboxes: the cost of a batch with many ended messages, many senders, or one held back."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from bench.bulk_rows import fill_messages
from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.measure import alternate, median_us
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.messages.claims import MAX_CLAIMED
from vox_mesh.messages.scripts import claim_script, json, release_script, sql
from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_ENDED: Final = 1_000_000
_UNREAD: Final = 100
_UNREAD_SENDERS: Final = 10
_SENDERS: Final = 10_000
_BEHIND: Final = 100_000
_QUICK: Final = 100  # times fewer, for a short look
_LEASE_MS: Final = 60_000
_OF_PAIR: Final = 64
_MAX_SIZE: Final = 2**20
_DAY_MS: Final = 86_400_000
_CROWDED: Final = "crowded"
_CALM: Final = "calm"
_HOLD_BACK: Final = """
    UPDATE a2a_messages SET not_before_ms = ?4, delivery_attempts = 1
    WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = ?3 AND sender_agent = 'sender-0'
      AND ended_ms IS NULL AND hlc = (
        SELECT min(hlc) FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = ?3 AND sender_agent = 'sender-0'
          AND ended_ms IS NULL)
"""


@asynccontextmanager
async def _node(environment: BenchEnvironment, home: HomeCase, name: str) -> AsyncIterator[MeshNode]:
    """A node on a database of its own: what one holds does not make the other's larger."""
    folder = environment.folder / name
    if not home.needs_server:
        async with Mesh.open(home.settings(folder, None)) as node:
            yield node
    else:
        with Server() as server:
            async with Mesh.open(home.settings(folder, server)) as node:
                yield node


# --- much that has ended -----------------------------------------------------------------------------


async def large_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server."""
    return await _large(environment, MESH, "sqld")


async def large_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _large(environment, FILE, "file")


async def _large(environment: BenchEnvironment, home: HomeCase, name: str) -> list[Figure]:
    ended = _ENDED if environment.pace.settled else _ENDED // _QUICK
    seconds = environment.pace.seconds
    checked: list[float] = []
    async with _node(environment, home, _CROWDED) as crowded, _node(environment, home, _CALM) as calm:
        await fill_messages(crowded, _CROWDED, ended, _UNREAD_SENDERS, ended=True)

        async def verify(batch: list[Message]) -> None:
            before = perf_counter()
            await crowded.messages.verifier.verify(batch)
            checked.append((perf_counter() - before) * 1e3)

        sides = {
            "whole": lambda: _batch_ms(crowded, _polled, seconds, verify),
            "calm whole": lambda: _batch_ms(calm, _polled, seconds),
            "claim": lambda: _batch_ms(crowded, _claimed, seconds),
            "calm claim": lambda: _batch_ms(calm, _claimed, seconds),
        }
        found = await alternate(sides, environment.pace.rounds)
    what = f"{name}: a batch of 100 unread behind {ended:,} ended messages / behind none,"
    return [
        Figure(
            f"message-inbox-{name}",
            f"{what} claimed and verified, p50",
            "ms",
            found["whole"],
            found["calm whole"],
            at_most(10.0, Of.OURS),
            notes={"verifying alone": statistics.median(checked)},
        ),
        Figure(
            f"message-inbox-{name}-claim",
            f"{what} claimed, p50",
            "ms",
            found["claim"],
            found["calm claim"],
        ),
    ]


Fetch = Callable[[MeshNode, str], Awaitable[list[Message]]]
Look = Callable[[list[Message]], Awaitable[None]]


async def _batch_ms(node: MeshNode, fetch: Fetch, seconds: float, look: Look | None = None) -> float:
    """Send a batch, fetch it and acknowledge it, again and again; the median time of fetching it."""
    times: list[float] = []
    end = perf_counter() + seconds
    while not times or perf_counter() < end:
        sending = [
            node.messages.send(_CROWDED, {"step": number}, sender=f"sender-{number % _UNREAD_SENDERS}")
            for number in range(_UNREAD)
        ]
        await asyncio.gather(*sending)
        before = perf_counter()
        batch = await fetch(node, _CROWDED)
        times.append(perf_counter() - before)
        if len(batch) != _UNREAD:
            raise RuntimeError(f"{len(batch)} messages were found, not {_UNREAD}")
        if look is not None:
            await look(batch)
        await node.messages.ack(*batch)
    return statistics.median(times) * 1e3


async def _polled(node: MeshNode, receiver: str) -> list[Message]:
    return await node.messages.poll_inbox_from_db(receiver)


async def _claimed(node: MeshNode, receiver: str) -> list[Message]:
    """The database's part of it."""
    maker = f"{node.identity.node_id}#{node.incarnation}:"
    whose = _inbox_with_senders(node, receiver, maker)
    script = claim_script(
        whose, lease_ms=_LEASE_MS, limit=MAX_CLAIMED, of_pair=_OF_PAIR, max_size=_MAX_SIZE, bury=True
    )
    return [Message.read(row[0]) for row in (await node.store.write(script)).rows]


def _inbox_with_senders(node: MeshNode, receiver: str, maker: str) -> tuple[str, str, str, str, str, str]:
    earlier = maker.rpartition("#")[0] + "#"
    return (*node.store.mesh_id, json([receiver]), maker + new_key(), earlier, maker)


# --- many senders, or one that is held back ------------------------------------------------------------


async def claims(environment: BenchEnvironment) -> list[Figure]:
    """Compare claims, and looks, with an inbox of few senders; in a file."""
    fewer = 1 if environment.pace.settled else _QUICK // 10
    senders, behind = _SENDERS // fewer, _BEHIND // fewer
    few = _UNREAD
    async with _node(environment, FILE, _CROWDED) as node:
        await fill_messages(node, _CALM, few, few)
        await fill_messages(node, "many", senders, senders)
        await fill_messages(node, "held back", behind, 1)
        values = (*node.store.mesh_id, "held back", time.time_ns() // 1_000_000 + _DAY_MS)
        await node.store.write(Script(Statement(_HOLD_BACK, values)))
        await fill_messages(node, "held back", few, few)
        found = await alternate(
            {
                f"{verb} {receiver}": _measure(environment, node, verb, receiver)
                for receiver in (_CALM, "many", "held back")
                for verb in ("claim", "look")
            },
            environment.pace.rounds,
        )
    what = {
        "many": f"an inbox with a message of each of {senders:,} senders / of each of {few},",
        "held back": f"an inbox where one message holds back {behind:,} of its sender / without that,",
    }
    return [
        Figure(
            f"message-{verb}-{receiver.replace(' ', '-')}",
            f"file: {words} {verb} p50",
            "ms",
            found[f"{verb} {receiver}"],
            found[f"{verb} {_CALM}"],
        )
        for receiver, words in what.items()
        for verb in ("claim", "look")
    ]


def _measure(
    environment: BenchEnvironment, node: MeshNode, verb: str, receiver: str
) -> Callable[[], Awaitable[float]]:
    if verb == "claim":
        return lambda: _claim_ms(node, receiver, environment.pace.seconds)

    async def look() -> float:
        maker = f"{node.identity.node_id}#{node.incarnation}:"
        values = (*_inbox_with_senders(node, receiver, maker), time.time_ns() // 1_000_000)
        seconds = environment.pace.seconds
        return await median_us(lambda: node.store.read(sql("claimable"), values), seconds) / 1e3

    return look


async def _claim_ms(node: MeshNode, receiver: str, seconds: float) -> float:
    """Claim, and give back unlooked at, again and again; the median time of claiming."""
    times: list[float] = []
    end = perf_counter() + seconds
    while not times or perf_counter() < end:
        before = perf_counter()
        batch = await _claimed(node, receiver)
        times.append(perf_counter() - before)
        if len(batch) < _UNREAD - 1:
            raise RuntimeError(f"only {len(batch)} messages were found")
        await node.store.write(release_script(node.store.mesh_id, batch, []))
    return statistics.median(times) * 1e3
