"""A job with twenty steps whose worker is killed at any point of it: each result is stored once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.jobs.step_programs import KIND, STEPS, WHERE
from tests.support.running.command_homes import settings as settings
from tests.support.running.lengths import SOAK, cases_in_soak
from tools.homes import FILE, MESH, environment
from vox_mesh import Mesh, Settings
from vox_mesh.model.jobs.steps.step_row import StepState

_KILLS: Final = 3 * STEPS if SOAK else 3
_PROCESS_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[3]


async def _work(settings: Settings, folder: Path) -> None:
    """Have a worker work until it is killed, or the job has ended."""
    variables = {**os.environ, **environment(settings), "PYTHONPATH": str(_ROOT)}
    command = (sys.executable, "-m", "tests.support.jobs.step_programs", str(folder))
    process = await asyncio.create_subprocess_exec(*command, env=variables, cwd=_ROOT)
    try:
        async with asyncio.timeout(_PROCESS_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.soak
@pytest.mark.timeout(1_200 if SOAK else 180)
@pytest.mark.parametrize("settings", [FILE, *cases_in_soak(MESH)], indirect=True, ids=str)
async def test_a_worker_killed_at_any_point_repeats_no_stored_step(
    settings: Settings, tmp_path: Path, seed: int
) -> None:
    every = [f"{number}:{where}" for number in range(STEPS) for where in WHERE]
    points = every if SOAK else Random(seed).sample(every, _KILLS)
    (tmp_path / "points").write_text("\n".join(points))
    async with Mesh.open_command(settings) as mesh:
        job = await mesh.jobs.schedule(KIND, lease="1s", max_interruptions=2 * len(points))
        for _ in range(len(points) + 1):
            await _work(settings, tmp_path)
        finished = await mesh.jobs.wait(job, timeout=_PROCESS_S)
        rows = await mesh.jobs.steps.verified(finished.job_id)
        assert await mesh.jobs.result(job) == [number * 10 for number in range(STEPS)]
    assert sorted((tmp_path / "killed").read_text().split()) == sorted(points)
    effects = Counter((tmp_path / "effects").read_text().split())
    for number in range(STEPS):
        # Only a worker that dies between the effect and the write of its result repeats the effect.
        assert effects[str(number)] == 1 + (f"{number}:within" in points)
    assert [(row.place, row.state) for row in rows] == [
        (each, StepState.DONE) for each in range(1, STEPS + 1)
    ]
