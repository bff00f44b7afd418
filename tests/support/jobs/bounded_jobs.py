"""Jobs with scores and budgets, on a worker in a mesh with ten beats a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pytest

from tests.support.jobs.job_desks import ended
from tools.homes import FILE
from vox_mesh import Mesh, Settings
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.costs import Resources
from vox_mesh.node import MeshNode

_POLICY: Final = "cluster_id: quick\ninitial_bpm: 600\nbar_len_beats: 8\n"
_RATES: Final = "role_rate_bu: {default: 1, exec: 10}\ncpu_sec: 100\ngpu_sec: {A100: 5}\n"
BEAT_MS: Final = 100
SCORE: Final = {
    "bar_len": 4,
    "phases": {"plan": 1, "work": 2, "review": 1},
    "retry": {"max_phrases": 2},
    "start": "now",
}
ONCE: Final = SCORE | {"escalation": {"on_overrun": ["checkpoint"]}}
FOR_EVER: Final = ("/bin/sh", "-c", "echo begun; while :; do sleep 60; done")
_ENDS: Final = """
    SELECT outcome, attempt, beats, overruns, resources, bu, cost, note, account, agent_id
    FROM phrase_ends WHERE job_id = ?1 ORDER BY began_ms, phrase_id
"""


class End(NamedTuple):
    """A phrase that has ended, as it was recorded."""

    outcome: str
    attempt: int
    beats: dict[str, float]
    overruns: int
    resources: Resources
    bu: float
    cost: float
    note: str
    account: str
    agent_id: str


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a worker on the file home, in a mesh with ten beats a second."""
    (tmp_path / "tempo.yaml").write_text(_POLICY)
    (tmp_path / "rates.yaml").write_text(_RATES)
    return FILE.settings(
        tmp_path,
        None,
        node_id="worker",
        tick="1h",
        worker_exec=True,
        tempo_policy=tmp_path / "tempo.yaml",
        rates=tmp_path / "rates.yaml",
    )


@pytest.fixture
async def node(settings: Settings) -> AsyncIterator[MeshNode]:
    """That worker."""
    async with Mesh.open(settings) as node:
        yield node


async def command(node: MeshNode, *argv: str, **fields: Any) -> Job:
    """Have a command run to its end, and nothing else."""
    (job,) = await node.jobs.schedule_all(
        [Manifest.of(command=argv, timeout=0, backoff="1ms", **fields)], new=True
    )
    async with node.worker.running():
        return (await ended(node, job))[0]


async def work(node: MeshNode, kind: str = "work", payload: Any = None, **fields: Any) -> Any:
    """Schedule a job for a handler."""
    manifest = Manifest.of(kind=kind, payload=payload, backoff="1ms", **fields)
    return (await node.jobs.schedule_all([manifest], new=True))[0]


async def ends_of(node: MeshNode, job: Any) -> list[End]:
    """The phrases of a job."""
    rows = await node.store.read(_ENDS, (job.job_id,), fresh=True)
    return [
        End._make(row)._replace(
            beats=orjson.loads(row["beats"]), resources=Resources.of(orjson.loads(row["resources"]))
        )
        for row in rows
    ]


async def logged(node: MeshNode, job: Any) -> str:
    """All that was said of a job."""
    return "".join(piece.text for piece in await node.jobs.notes.logged(job.job_id))
