"""An app as a user's module has it; tests put a copy of it into the folder that a worker runs in."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh import JobContext, MeshApp

mesh = MeshApp()


@dataclass
class Total:
    """What is returned."""

    words: int
    by: str


@mesh.job("example.count", retries=1)
async def count(context: JobContext, text: str, factor: int = 1) -> Total:
    """Count the words of a text."""
    return Total(len(text.split()) * factor, context.job.kind)


@mesh.job("example.forward", max_running=3)
def forward(context: JobContext, text: str) -> str:
    """Schedule another job from a thread of the worker, and return its id."""
    return context.run(count.schedule(text, factor=2)).job_id
