"""A program that works on jobs which ask a question and end with its answer, in a process of its own.

It answers the signal `memory` with the peak of its memory in bytes. When a job goes on, it reports how long
that took, in milliseconds, since the moment that is its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import orjson

from bench.measure import peak_bytes
from bench.programs.job_worker import SCOPE
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import JobContext, Mesh, Settings, run

ASKING: Final = "bench.asking"
MEMORY: Final = "memory"

_PLACES: Final = 64


async def _serve(settings: Settings) -> None:
    async with Mesh.open(settings) as node:

        @node.worker.handles(ASKING)
        async def ask(context: JobContext) -> None:
            answered = await context.ask("When?")
            _report((time.monotonic_ns() - answered) / 1e6)

        async with node.worker.running(concurrency=_PLACES, kinds=[ASKING]):
            print("ready", flush=True)
            while (await asyncio.to_thread(sys.stdin.readline)).strip():
                _report(peak_bytes())


def _report(value: object) -> None:
    print(orjson.dumps(value).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_primary(parser)
    arguments = parser.parse_args()
    run(_serve(node_settings(arguments.folder, arguments.primary, scope_id=SCOPE)))
