"""A worker that kills itself at chosen points of a job with steps.

`python -m tests.support.jobs.step_programs FOLDER`

The folder has `points`, one a line, and gets `effects` and `killed`. It ends when the job has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.support.messages.message_programs import Lines
from vox_mesh import JobContext, Mesh

KIND = "steps"
STEPS = 20
WHERE = ("before", "within", "after")
"""Before the effect of a step, after the effect, and after its result was stored."""


async def main(folder: Path) -> None:
    """Work until the job has ended."""
    chosen = frozenset((folder / "points").read_text().split())
    effects, killed = Lines(str(folder / "effects")), Lines(str(folder / "killed"))
    done = frozenset((folder / "killed").read_text().split()) if (folder / "killed").exists() else frozenset()

    def pass_by(point: str) -> None:
        if point in chosen and point not in done:
            killed.add(point)
            os.kill(os.getpid(), signal.SIGKILL)

    async with Mesh.open() as mesh:
        has_ended = asyncio.Event()

        @mesh.worker.handles(KIND, lease=1)
        async def handle(context: JobContext) -> list[int]:
            async def effect(number: int) -> int:
                pass_by(f"{number}:before")
                effects.add(number)
                pass_by(f"{number}:within")
                return number * 10

            results = []
            for number in range(STEPS):
                results.append(await context.step(f"step {number}", effect, number))
                pass_by(f"{number}:after")
            has_ended.set()
            return results

        async with mesh.worker.running():
            await has_ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
