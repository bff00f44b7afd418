"""A program that works on jobs which do nothing, in a process of its own.

Signals: `follow`, after which it reports for every job how long it took from being scheduled to being begun,
in milliseconds; `work`, answered when no job is left, with how many were its own, when it did the last, and
the seconds of processor time that they took; `counts`, answered with what it has counted since its start.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import orjson

from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import JobContext, Mesh, Settings, run
from vox_mesh.node import MeshNode

SCOPE: Final = "bench"
FOLLOW: Final = "follow"
WORK: Final = "work"
COUNTS: Final = "counts"
FOLLOWED: Final = "bench.followed"
NOOP: Final = "bench.noop"
"""The kinds of job: the payload of a followed one is the moment it was scheduled."""

_PLACES: Final = 64
_GLANCE_S: Final = 0.01


async def _serve(settings: Settings) -> None:
    async with Mesh.open(settings) as node:
        register(node)
        print("ready", flush=True)
        while signal := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if signal == FOLLOW:
                await node.worker.start(concurrency=_PLACES, kinds=[FOLLOWED])
                _report(True)
            elif signal == COUNTS:
                _report(_counts(node))
            else:
                _report(await work(node))


def register(node: MeshNode) -> None:
    """Give it the handlers."""

    @node.worker.handles(FOLLOWED)
    async def follow(context: JobContext) -> None:
        _report((time.monotonic_ns() - context.payload) / 1e6)

    @node.worker.handles(NOOP)
    async def do_nothing(context: JobContext) -> None:
        pass


async def work(node: MeshNode) -> tuple[int, int, float]:
    """Work until no job is left; return the number of its own, when it did the last, and what they took."""
    before, stats, began_s = node.worker.stats.succeeded, node.worker.stats, time.process_time()
    done, last, looked_at = before, time.monotonic_ns(), -1
    async with node.worker.running(concurrency=_PLACES, kinds=[NOOP]):
        while True:
            await asyncio.sleep(_GLANCE_S)
            if stats.succeeded > done:
                done, last = stats.succeeded, time.monotonic_ns()
            elif not node.worker.running_count and node.store.change_count != looked_at:  # a look costs, too
                looked_at = node.store.change_count
                if not any(await _open(node)):
                    break
    if stats.succeeded > done:
        last = time.monotonic_ns()
    await node.rhythm.status.flush()  # what jobs with a score leave for the end of the beat
    return stats.succeeded - before, last, time.process_time() - began_s


def _counts(node: MeshNode) -> dict[str, float]:
    worker, store = node.worker, node.store.stats
    return {
        "jobs": worker.stats.claimed,
        "writes": store.batches.count,
        "claims": worker.claims_sent,
        "refused": sum(store.refusals.values()),
        "reads": sum(count for purpose, count in store.requests.items() if purpose != "write"),
        "cpu_s": time.process_time(),
    }


async def _open(node: MeshNode) -> list[int]:
    counts = (await node.jobs.queries.counts()).get(NOOP, {})
    return [counts.get(state, 0) for state in ("pending", "claimed", "running")]


def _report(value: object) -> None:
    print(orjson.dumps(value).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_primary(parser)
    arguments = parser.parse_args()
    run(_serve(node_settings(arguments.folder, arguments.primary, scope_id=SCOPE)))
