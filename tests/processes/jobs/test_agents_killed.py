"""Workers with coding agents that are killed, as processes: another takes the job, and no process is left."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.jobs.test_worker_run import worker_run
from tests.support.jobs.agent_jobs import Pids, agent_config, artifact, is_alive, write_agents
from tests.support.locks.lock_runs import PATIENCE_S
from tests.support.running.command_homes import settings as settings
from tests.support.running.lengths import cases_in_soak
from tools.homes import FILE, MESH
from vox_mesh import Manifest, Mesh, Settings


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Pids]:
    """Where an agent reports its processes."""
    found = Pids(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("settings", [MESH, *cases_in_soak(FILE)], indirect=True, ids=str)
async def test_a_killed_worker_leaves_no_agent_and_another_takes_its_job(
    settings: Settings, tmp_path: Path, pids: Pids
) -> None:
    base, file = tmp_path / "agents", tmp_path / "agents.yaml"
    write_agents(file, scripted=agent_config(base))
    steps = [{"ignore": 0}, {"child": str(pids.path)}, {"once": str(tmp_path / "first")}, {"say": "done"}]
    manifest = Manifest.of(kind="agent", payload={"prompt": json.dumps(steps)}, lease="2s")
    async with Mesh.open_command(settings) as mesh:
        (scheduled,) = await mesh.jobs.schedule_all([manifest])
        async with worker_run(settings, "--agents", str(file)) as worker:
            assert worker.kinds == "agent,agent.scripted"
            first = await pids.read()
            worker.send(signal.SIGKILL)
            await worker.run.ended()
        async with worker_run(settings, "--agents", str(file), "--kinds", "agent.*", "--kinds", "agent"):
            job = await mesh.jobs.wait(scheduled, timeout=PATIENCE_S)
            second = await pids.read()
        assert (job.state, job.attempts, job.interruptions) == ("succeeded", 2, 1)
        assert json.loads(await artifact(mesh, job, "result"))["message"] == "done"
    assert first != second
    assert not any(map(is_alive, [*first, *second]))
    assert sorted(each.name for each in base.iterdir()) == []
