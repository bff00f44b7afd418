"""A job that is said to have succeeded has run: each time, or once if that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs.job_scene import on_node
from tests.support.jobs.jobs_in_hand import claim, found, lapse
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode


def test_a_command_runs_each_time_and_with_once_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def work(node: MeshNode) -> None:
        for name, is_new in (("each-time", True), ("once", False)):
            command = ["sh", "-c", f"echo ran >>{name}"]
            for place in range(3):
                manifest = Manifest.of(command=command, cwd=str(tmp_path), timeout=30)
                (job,) = await node.jobs.schedule_all([manifest], new=is_new)
                assert job.is_new is (is_new or place == 0)
                async with node.worker.running():
                    assert (await node.jobs.wait(job)).state == "succeeded"

    on_node(work)
    runs = {name: (tmp_path / name).read_text().split() for name in ("each-time", "once")}
    assert runs == {"each-time": 3 * ["ran"], "once": ["ran"]}


def test_a_job_that_kills_its_workers_fails_only_by_its_limit_of_interruptions() -> None:
    async def work(node: MeshNode) -> None:
        job = await node.jobs.schedule("work", max_attempts=1, max_interruptions=1)
        seen = []
        for _ in range(2):
            await claim(node, job)
            await lapse(node, job)
            (lost,) = await found(node, job)
            assert await node.jobs.expire([lost]) == [job.job_id]
            (lost,) = await found(node, job)
            seen.append((lost.state, lost.failures, lost.interruptions))
        assert seen == [("pending", 0, 1), ("failed", 0, 2)]

    on_node(work)
