"""A process that takes what another sends over a channel.

The signal `N` has it take N; it answers when that is done, with their delays and the moment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import orjson

from bench.peers.channels.channel import ChannelService
from bench.peers.channels.registry import CHANNELS
from vox_mesh import run


async def _serve(service: ChannelService, place: str) -> None:
    async with service.open(place) as channel:
        print("ready", flush=True)
        while signal := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(orjson.dumps(tuple(await channel.take(int(signal)))).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=CHANNELS)
    parser.add_argument("service")
    parser.add_argument("place")
    arguments = parser.parse_args()
    run(_serve(CHANNELS[arguments.what][arguments.service], arguments.place))
