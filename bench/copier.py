"""A process that makes a first copy in the folder that its one signal names.

It reports how long that took, and by how much it has grown; a second copy would find it grown already.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from pathlib import Path
from time import perf_counter
from typing import Final

import orjson

import vox_mesh.store.hrana.ws  # here, or the time and the memory that loading them takes would be counted
import vox_mesh.store.replica.choice  # noqa: F401
from bench.companion import add_primary, node_settings
from vox_mesh import Settings, open_store

_STATUS: Final = Path("/proc/self/status")


async def _copy(settings: Settings) -> dict[str, float]:
    memory = _peak_bytes()
    before = perf_counter()
    async with await open_store(settings) as store:
        await store.synced()
        seconds = perf_counter() - before
        replica = (await store.status()).replica
        assert replica is not None
        return {"seconds": seconds, "bytes": replica.bytes, "grown_bytes": _peak_bytes() - memory}


def _peak_bytes() -> int:
    """The most memory that this process has held so far."""
    if _STATUS.exists():  # what `getrusage` says here includes the process that started this one
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_primary(parser)
    arguments = parser.parse_args()
    print("ready", flush=True)
    folder = Path(sys.stdin.readline().strip())
    report = asyncio.run(_copy(node_settings(folder, arguments.primary)))
    print(orjson.dumps(report).decode(), flush=True)
