"""Advice for jobs that no worker runs: which kinds these are, and how to start a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vox_mesh.model.jobs.records import EXEC, covers


def kinds_without_worker(kinds: Iterable[str], announced: Iterable[Sequence[str]]) -> list[str]:
    """Return the kinds that no live node runs, given the kinds that each of them announces."""
    nodes = list(announced)
    return sorted({kind for kind in kinds if not any(covers(kind, each) for each in nodes)})


def starting_command(kind: str) -> str:
    """Return the command that starts a worker for a kind."""
    return f"`vox-mesh up {'--worker-exec' if kind == EXEC else '--handlers MODULE:NAME'}`"
