"""Tags: a job that has some goes only to a worker or agent that has them all, and holds up no other job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs.job_desks import ended
from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.retry import retry_manifest
from vox_mesh.node import MeshNode


async def tagged(node: MeshNode, *tags: str, count: int = 1) -> list[str]:
    """New urgent jobs of the kind `work` with these tags."""
    manifests = [Manifest.of(kind="work", tags=[*tags], priority=3) for _ in range(count)]
    return [each.job_id for each in await node.jobs.schedule_all(manifests)]


async def taken_by(node: MeshNode, *tags: str, count: int = 1) -> set[str]:
    """The jobs that an agent with these tags is given."""
    return {each.job.job_id for each in await node.work.take("coder", tags=tags, count=count)}


async def test_an_agent_is_given_the_jobs_whose_tags_it_has(node: MeshNode) -> None:
    await tagged(node, "gpu", count=40)  # more than one look reads
    (both,) = await tagged(node, "linux", "gpu")
    other = (await node.jobs.schedule("work", {"tags": ["not one of its tags"]})).job_id
    assert await taken_by(node, count=9) == {other}
    assert await taken_by(node, "linux") == set()
    of_gpu = await taken_by(node, "gpu", count=50)
    assert (len(of_gpu), both in of_gpu) == (40, False)
    assert await taken_by(node, "gpu", "linux", "more") == {both}


async def test_a_worker_runs_the_jobs_whose_tags_it_has(node: MeshNode) -> None:
    node.worker.handles("work")(lambda context: None)
    (gpu,) = await tagged(node, "gpu")
    (arm,) = await tagged(node, "arm")
    for tags, done in ((), []), (["gpu", "linux"], [gpu]):
        async with node.worker.running(tags=tags):
            await ended(node, (await node.jobs.schedule("work")).job_id, *done)
    found = [await node.jobs.find(each) for each in (gpu, arm)]
    assert [(job.state, job.attempts) for job in found] == [("succeeded", 1), ("pending", 0)]


async def test_a_retry_has_the_tags_of_its_job(local: MeshNode) -> None:
    job = await local.jobs.find((await local.jobs.schedule("work", tags=["gpu", "arm"])).job_id)
    assert (job.core["tags"], retry_manifest(job).core()["tags"]) == (["arm", "gpu"], ["arm", "gpu"])


def test_no_tags_leave_the_id_of_a_job_as_it_was() -> None:
    plain = Manifest.of(kind="work")
    assert plain.core() == {"kind": "work"}
    assert Manifest.of(kind="work", tags=[]).content_id == plain.content_id
    one, other = (Manifest.of(kind="work", tags=tags) for tags in (["a", "b"], ["b", "a"]))
    assert one.content_id == other.content_id != plain.content_id
    assert Manifest.of_core(one.core()) == one


@pytest.mark.parametrize("tag", ["GPU", "a b", "", "x" * 65, "-a"])
async def test_a_malformed_tag_is_refused(local: MeshNode, tag: str) -> None:
    with pytest.raises(BadManifest, match="tags"):
        Manifest.of(kind="work", tags=[tag])
    with pytest.raises(BadValue, match="a tag must be"):
        await local.work.take("coder", tags=[tag])


@pytest.mark.parametrize(
    ("tags", "fault"),
    [
        (["a", "a"], "a is named twice"),
        ([f"t{n}" for n in range(17)], "has 17; at most 16 fit"),
        ("gpu", "tags"),
    ],
)
def test_wrong_tags_of_a_manifest_are_refused(tags: Any, fault: str) -> None:
    with pytest.raises(BadManifest, match=fault):
        Manifest.of(kind="work", tags=tags)
