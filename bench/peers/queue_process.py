"""A process that has one queue open: it enqueues or works on a signal, and reports.

Signals: `put N AT_ONCE`, answered with the seconds that took; `work`, answered when no job is left, with the
number of its own, when it could begin, and when it did the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from time import perf_counter

import orjson

from bench.peers.peer import Peer, PeerQueue
from bench.peers.registry import BY_NAME
from vox_mesh import run


async def _serve(peer: Peer, place: str) -> None:
    async with peer.open(place) as queue:
        print("ready", flush=True)
        while signal := (await asyncio.to_thread(sys.stdin.readline)).split():
            print(orjson.dumps(await _report(queue, *map(int, signal[1:]))).decode(), flush=True)


async def _report(queue: PeerQueue, *numbers: int) -> object:
    if not numbers:
        return tuple(await queue.work())
    before = perf_counter()
    await queue.put(*numbers)
    return perf_counter() - before


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=BY_NAME)
    parser.add_argument("place")
    arguments = parser.parse_args()
    run(_serve(BY_NAME[arguments.peer], arguments.place))
