"""A process with a node that receives messages, and reports their delays, or the time of many.

Signals: `follow`, answered when it receives, and from then on with the milliseconds that each message took,
when it is acknowledged; `inbox N` and `receive N`, answered when N messages have been received and
acknowledged, batch by batch or one by one, with the seconds that took.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from typing import Final

import orjson

from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import Mesh, Settings, run
from vox_mesh.node import MeshNode

SCOPE: Final = "bench"
FOLLOW: Final = "follow"
INBOX: Final = "inbox"
RECEIVE: Final = "receive"
"""Each of them is also the name of the agent that the messages are for."""


def stamped() -> int:
    """The body of a message that is followed: the moment, by a clock that all processes here share."""
    return time.monotonic_ns()


async def _serve(settings: Settings) -> None:
    async with Mesh.open(settings) as node:
        print("ready", flush=True)
        following: asyncio.Task[None] | None = None
        while signal := await asyncio.to_thread(sys.stdin.readline):
            name, *count = signal.split()
            if name == FOLLOW:
                await node.messages.announce([FOLLOW])
                following = asyncio.create_task(_follow(node))
                _report(True)
            else:
                await node.store.synced()
                before = perf_counter()
                await (_by_batches if name == INBOX else _one_by_one)(node, int(count[0]))
                _report(perf_counter() - before)
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _report(value: object) -> None:
    print(orjson.dumps(value).decode(), flush=True)


async def _follow(node: MeshNode) -> None:
    async for message in node.messages.receive(FOLLOW):
        delay_ms = (time.monotonic_ns() - message.body) / 1e6
        await node.messages.ack(message, durable=True)
        _report(delay_ms)


async def _by_batches(node: MeshNode, count: int) -> None:
    while count > 0:
        seen = node.store.change_count
        batch = await node.messages.inbox(INBOX)
        await node.messages.ack(*batch)
        count -= len(batch)
        if not batch:
            await node.store.changed(seen)


async def _one_by_one(node: MeshNode, count: int) -> None:
    async with aclosing(node.messages.receive(RECEIVE)) as receiving:
        for _ in range(count):
            await node.messages.ack(await anext(receiving))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-relay", action="store_true")
    add_primary(parser)
    arguments = parser.parse_args()
    http = "0" if arguments.without_relay else "1"
    run(_serve(node_settings(arguments.folder, arguments.primary, scope_id=SCOPE, http=http)))
