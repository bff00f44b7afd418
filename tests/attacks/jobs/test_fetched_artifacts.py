"""Artifacts of other nodes: what is fetched is what the job has produced, or nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from vox_mesh import JobContext, Mesh, load_settings
from vox_mesh.errors import ArtifactDamaged, ArtifactMissing
from vox_mesh.node import MeshNode
from vox_mesh.settings import Settings

_TOKEN = "5f0c3b1e9a7d42688c4e1b0a6d93f7e25f0c3b1e9a7d4268"
_LARGE = bytes(range(256)) * 200


def settings_of(folder: Path, name: str, **more: Any) -> Settings:
    """The settings of a node with a home of its own."""
    home = {"db_path": folder / "db", "home_dir": folder / name}
    return load_settings(_env_file=None, enabled=True, node_id=name, token=_TOKEN, **home, **more)


async def kept_by(node: MeshNode) -> str:
    """Have a node do a job with a large artifact; the hash of that."""

    @node.worker.handles("test.large")
    async def handle(context: JobContext) -> None:
        await context.keep("large", _LARGE)

    async with node.worker.running():
        job = await node.jobs.wait(await node.jobs.schedule("test.large"), timeout=30)
    return str(job.outputs[0]["hash"])


class LyingNode:
    """A node that sends other contents."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def stream(self, node_id: str, content_hash: str) -> AsyncGenerator[bytes, None]:
        """Send them."""
        for piece in self._pieces:
            yield piece


async def test_a_large_artifact_is_fetched_from_its_node_and_kept(tmp_path: Path) -> None:
    async with Mesh.open(settings_of(tmp_path, "here")) as here:
        async with Mesh.open(settings_of(tmp_path, "there")) as there:
            content_hash = await kept_by(there)
            assert here.artifacts.local_path(content_hash) is None
            assert await here.artifacts.body(content_hash) == _LARGE
        assert (await here.artifacts.path(content_hash)).read_bytes() == _LARGE  # its node has left
        async with Mesh.open(settings_of(tmp_path, "late")) as late:
            with pytest.raises(ArtifactMissing, match="which can't be reached"):
                await late.artifacts.body(content_hash)


@pytest.mark.parametrize(
    "pieces",
    [[b"x" + _LARGE[1:]], [_LARGE, b"more"], [_LARGE[:-1]], []],
    ids=["changed", "longer", "cut", "none"],
)
async def test_an_artifact_that_its_node_has_changed_is_not_taken(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    async with (
        Mesh.open(settings_of(tmp_path, "here", http=False)) as here,
        Mesh.open(settings_of(tmp_path, "there", http=False)) as there,
    ):
        content_hash = await kept_by(there)
        artifacts = here.artifacts_with(lambda: LyingNode(pieces))
        for read in (artifacts.body, artifacts.path):
            with pytest.raises(ArtifactDamaged, match="node there sent another content"):
                await read(content_hash)
        assert here.artifacts.local_path(content_hash) is None
        assert not [*(tmp_path / "here" / "artifacts").glob("*.draft")]
