"""A process that makes a first copy in the folder that its one signal names.

It reports how long that took, and by how much it has grown; a second copy would find it grown already.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

import orjson

from bench.measure import peak_bytes
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import Settings, open_store, run


async def _copy(settings: Settings) -> dict[str, float]:
    memory = peak_bytes()
    before = perf_counter()
    async with await open_store(settings) as store:
        await store.synced()
        seconds = perf_counter() - before
        replica = (await store.status()).replica
        assert replica is not None
        return {"seconds": seconds, "bytes": replica.bytes, "grown_bytes": peak_bytes() - memory}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_primary(parser)
    arguments = parser.parse_args()
    print("ready", flush=True)
    folder = Path(sys.stdin.readline().strip())
    report = run(_copy(node_settings(folder, arguments.primary)))
    print(orjson.dumps(report).decode(), flush=True)
