"""A blocking app as a user's module has it; tests put a copy of it into the folder that a worker runs in."""

from __future__ import annotations

from vox_mesh.sync import MeshApp

mesh = MeshApp()


@mesh.job("example.double")
def double(number: int) -> int:
    """Return twice the number."""
    return number * 2


@mesh.job("example.relay")
def relay(number: int) -> str:
    """Schedule another job from a worker, without `await`, and return its id."""
    return double.schedule(number + 1).job_id
