"""What is answered over HTTP is what the command prints with `--json`, of the same mesh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.jobs.staging import brought
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.model.jobs.records import JobState

_CRON = {"expression": "@daily", "manifest": {"kind": "test.report"}}


@pytest.fixture
async def neighbour(tmp_path: Path) -> AsyncIterator[tuple[ServedNode, VoxCommand]]:
    """A node with an API, and commands on the same mesh."""
    shared_mesh = SharedMesh(FILE, tmp_path, None, "")
    async with serving_api(shared_mesh) as served:
        variables = {
            "VOX_MESH_ENABLED": "1",
            "VOX_DB_PATH": str(tmp_path / "shared.db"),
            "VOX_MESH_HOME": str(tmp_path / "ann" / "vox"),
            "VOX_MESH_NODE_ID": "ann",
        }
        yield served, VoxCommand(tmp_path, **variables)


async def test_commands_and_operations_tell_the_same(neighbour: tuple[ServedNode, VoxCommand]) -> None:
    served, vox = neighbour

    async def printed(*arguments: str) -> Any:
        return (await asyncio.to_thread(vox, *arguments, "--json")).document

    (first,) = await served.post("/v1/jobs", {"manifests": [{"kind": "test.a", "payload": [1.5, None]}]})
    done = await brought(served.node, JobState.SUCCEEDED)
    failed = await brought(served.node, JobState.FAILED)
    assert done is not None
    assert failed is not None
    job = first["job_id"]
    waiting = {"kind": "test.b", "after": [job, done.job_id]}
    await served.post("/v1/jobs", {"manifests": [waiting]})
    await served.ask("PUT", "/v1/crons/report", _CRON)
    await served.ask("PUT", "/v1/rules/report", {"op_kind": "BreakLock", "manifest": {"kind": "test.report"}})
    await served.post("/v1/kinds/test.b/pause")
    await served.ask("PUT", "/v1/workers/ann/drain")

    (page,) = [await served.get("/v1/jobs")]
    assert await printed("job", "list") == page["items"]
    assert await printed("job", "list", "--counts") == await served.all("/v1/jobs/counts")
    assert await printed("job", "dead") == await served.all("/v1/jobs", state="failed")
    assert await printed("job", "ready") == await served.get("/v1/jobs/ready")
    assert await printed("job", "show", job) == await served.get(f"/v1/jobs/{job}")
    assert await printed("job", "graph", job) == await served.get(f"/v1/jobs/{job}/graph")
    assert await printed("job", "graph") == await served.get("/v1/jobs/graph")
    assert await printed("job", "verify", done.job_id) == await served.get(f"/v1/jobs/{done.job_id}/verify")
    assert await printed("job", "rebuild", "--check") == await served.get("/v1/jobs/rebuild")
    assert await printed("job", "wait", done.job_id) == [await served.get(f"/v1/jobs/{done.job_id}/wait")]
    assert await printed("cron", "list") == await served.all("/v1/crons")
    assert await printed("rule", "list") == await served.all("/v1/rules")
    assert await printed("kind", "list") == await served.all("/v1/kinds")
    assert await printed("worker", "list") == await served.all("/v1/workers")
    assert await printed("job", "schedule", "--once", "--kind", "test.a", "--payload", "[1.5, null]") == {
        **first,
        "is_new": False,
    }
    dry = {"kind": "test.*", "dry_run": True}
    plan = (await served.post("/v1/jobs/abort", dry))["items"]
    assert await printed("job", "abort", "--kind", "test.*", "--dry-run") == plan
    again = await served.post(f"/v1/jobs/{failed.job_id}/retry")
    assert await printed("job", "retry", failed.job_id) == [{**again, "is_new": False}]
    ended = await served.post(f"/v1/jobs/{job}/abort", {})
    assert await printed("job", "abort", job) == [{**ended, "aborted": False}]
