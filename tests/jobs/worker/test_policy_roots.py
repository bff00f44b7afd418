"""Policy roots: a worker that requires one claims no job without it, and another worker does those."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.jobs.job_desks import ended
from vox_mesh import Mesh, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.policy_roots import parse_policy_roots, refusal
from vox_mesh.node import MeshNode
from vox_mesh.views.jobs import jobs_held_back, show_whole_job

_ROOT: Final = f"sha256:{'ab' * 32}"
_OTHER: Final = f"sha256:{'cd' * 32}"


@asynccontextmanager
async def working(folder: Path, name: str, roots: str | None) -> AsyncIterator[MeshNode]:
    """A node with a worker for the kind `work` that allows these policy roots."""
    settings = load_settings(
        _env_file=None,
        enabled=True,
        http=False,
        node_id=name,
        home_dir=folder / name,
        db_path=folder / "mesh.db",
        worker_policy_roots=roots,
    )
    async with Mesh.open(settings) as node:

        @node.worker.handles("work")
        async def handle(context: JobContext) -> None:
            return None

        async with node.worker.running():
            yield node


async def rooted(node: MeshNode, root: str) -> str:
    """A new job of the kind `work` with this policy root."""
    (scheduled,) = await node.jobs.schedule_all([Manifest.of(kind="work", policy_root=root)])
    return scheduled.job_id


async def test_a_job_goes_to_a_worker_that_allows_its_policy_root(tmp_path: Path) -> None:
    async with working(tmp_path, "strict", f"{_ROOT}, {_OTHER.upper().replace('SHA', 'sha')}") as strict:
        without = (await strict.jobs.schedule("work", 1)).job_id
        unknown = await rooted(strict, f"sha256:{'0' * 64}")
        known = await rooted(strict, _OTHER)
        await ended(strict, known)
        reason = (await show_whole_job(strict, unknown)).held_back
        assert reason == f"policy root sha256:{'0' * 64}: not allowed by VOX_WORKER_POLICY_ROOTS of strict"
        held = await jobs_held_back(strict, 10)
        assert held[without] == "it has no policy root: not allowed by VOX_WORKER_POLICY_ROOTS of strict"
        assert {*held} == {without, unknown}
        async with working(tmp_path, "open", None) as other:
            await ended(other, without, unknown)
        found = [await strict.jobs.find(each) for each in (known, without, unknown)]
        assert [(job.state, job.claimer) for job in found] == [
            ("succeeded", "strict"),
            ("succeeded", "open"),
            ("succeeded", "open"),
        ]


async def test_the_root_that_counts_is_that_of_the_verified_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path, "strict", _ROOT) as strict:
        look = strict.jobs.queries.claimable

        async def planted(*asked: Any, policy_roots: Any, **more: Any) -> Any:
            return await look(*asked, policy_roots=None, **more)

        monkeypatch.setattr(strict.jobs.queries, "claimable", planted)
        unknown = await rooted(strict, _OTHER)
        await ended(strict, await rooted(strict, _ROOT))
        assert (await strict.jobs.find(unknown)).attempts == 0


@pytest.mark.parametrize(
    "text", ["sha256:ab", "ab" * 32, f"{_ROOT},", f"{_ROOT};{_OTHER}", ",".join([_ROOT] * 257)]
)
def test_wrong_policy_roots_are_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="VOX_WORKER_POLICY_ROOTS: "):
        parse_policy_roots(text)


def test_without_workers_there_is_no_refusal() -> None:
    assert parse_policy_roots(" ") is None
    assert refusal(_ROOT, {}) is None
    assert refusal(_ROOT, {"a": [_OTHER], "b": None}) is None
    assert refusal(None, {"b": [_OTHER], "a": []}) == (
        "it has no policy root: not allowed by VOX_WORKER_POLICY_ROOTS of a, b"
    )
