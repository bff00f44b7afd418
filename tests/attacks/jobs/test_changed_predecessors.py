"""Changed predecessors: a successor runs only after what it waits for, and is given only what was signed."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.oplog.tampering import NOTE
from vox_mesh import JobContext
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.bundle import base64_of
from vox_mesh.model.jobs.proof import Output, hash_of
from vox_mesh.model.jobs.records import COMPLETE, JobState
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

PATIENCE_S = 30.0
OF_JOB = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
RELEASE = """
jobs:
  build: { kind: build, payload: built }
  lint: { kind: build, payload: linted }
  ship:
    after: [build, lint]
    kind: ship
    payload: "${{ jobs.build.output }}"
    priority: 3
"""


async def _build(context: JobContext) -> Any:
    if context.payload == "bad":
        raise GiveUp("bad")
    return context.payload


async def build(node: MeshNode, *references: Any) -> None:
    """Have a node run jobs: they return their payloads, or fail."""
    if node.worker.handlers.of("build") is None:
        node.worker.handles("build")(_build)
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        for each in references:
            await node.jobs.wait(each)


class Shipping:
    """A worker of what waits for builds. It takes one job at a time, so that a forged one comes first."""

    def __init__(self, node: MeshNode) -> None:
        self._node = node
        self._ran: list[Any] = []
        self._done = asyncio.Event()
        node.worker.handles("ship")(self._ship)

    async def _ship(self, context: JobContext) -> None:
        results = await context.results()
        if context.payload == "last":
            self._done.set()
        else:
            self._ran.append((context.payload, *sorted(map(str, results.values()))))

    async def run(self) -> list[Any]:
        """Run the jobs that can be run, and a genuine one last; their payloads and results."""
        self._ran.clear()
        self._done.clear()
        await self._node.jobs.schedule("ship", "last", priority=0)
        async with asyncio.timeout(PATIENCE_S), self._node.worker.running(concurrency=1):
            await self._done.wait()
        return [*self._ran]


def plant_output(hostile: HostileWriter, text: str) -> str:
    """Plant an artifact, and return the outputs of a row that has it as its result."""
    body = canonical(text).encode()
    output = Output("result", hash_of(body), len(body), "application/json")
    if hostile.run(
        "SELECT 1 FROM job_artifacts WHERE scope_id = ?1 AND repository_id = ?2 AND hash = ?3", output.hash
    ):
        return canonical([output.document()])
    columns = {"hash": output.hash, "size": output.size, "type": output.type, "body": base64_of(body)}
    hostile.insert("job_artifacts", node_id="owner", created_ms=0, **columns)
    return canonical([output.document()])


async def test_a_successor_is_given_what_its_predecessor_signed(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    run = (await owner.workflows.run_text(RELEASE, "release.yaml", {})).named()
    await build(owner, run["build"], run["lint"])
    outputs = plant_output(hostile, "forged")
    hostile.run(f"UPDATE jobs SET output_artifacts = ?4 {OF_JOB}", run["build"].job_id, outputs)
    await other.store.synced()
    assert await Shipping(other).run() == [("built", "built", "linted")]
    assert other.jobs.authorship.forged == 0


async def test_no_predecessor_stands_in_for_another(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    run = (await owner.workflows.run_text(RELEASE, "release.yaml", {})).named()
    await build(owner, run["build"], run["lint"])
    for job, ulid in (("lint", new_key()), ("build", run["lint"].ulid), ("lint", run["build"].ulid)):
        hostile.run(f"UPDATE jobs SET ulid = ?4 {OF_JOB}", run[job].job_id, ulid)
    await other.store.synced()
    assert await Shipping(other).run() == []
    assert other.jobs.authorship.forged == 1
    assert (await other.jobs.find(run["ship"].job_id)).failures == 0


async def test_a_retry_is_given_the_results_that_its_original_was_to_get(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    jobs = [await owner.jobs.schedule("build", name) for name in ("built", "foreign")]
    await build(owner, *jobs)
    retries = []
    for name in ("genuine", "changed"):
        original = await owner.jobs.schedule("ship", name, after=[jobs[0]], priority=3)
        await owner.jobs.abort(original)
        retries.append(await owner.jobs.retry(original))
    manifest = "replace(manifest, ?4, ?5)"
    names = (original.job_id, *(each.job_id for each in jobs))
    hostile.run(f"UPDATE jobs SET manifest = {manifest} {OF_JOB}", *names)
    await other.store.synced()
    assert await Shipping(other).run() == [("genuine", "built")]
    assert (await other.jobs.find(retries[1])).state != JobState.SUCCEEDED


async def _not_begun(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    return {"job": (await owner.jobs.schedule("slow")).job_id}


def _forge_end(hostile: HostileWriter, job_id: str, last_op: str) -> None:
    outputs = plant_output(hostile, "forged")
    ended = "state = 'succeeded', ended_ms = 1, lease_until_ms = NULL, output_artifacts = ?4, last_op = ?5"
    hostile.run(f"UPDATE jobs SET {ended} {OF_JOB}", job_id, outputs, last_op)


async def _only_a_row(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    after = await _not_begun(owner, hostile)
    _forge_end(hostile, after["job"], new_key())
    return after


async def _with_the_op_of_another(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    finished = await owner.jobs.schedule("build", "finished")
    await build(owner, finished)
    after = await _not_begun(owner, hostile)
    _forge_end(hostile, after["job"], (await owner.jobs.find(finished)).last_op)
    return after


async def _with_an_op_of_a_stranger(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    after = await _not_begun(owner, hostile)
    item = {"job_id": after["job"], "claim_token": 1, "state": "succeeded", "output_artifacts": []}
    entry = hostile.plant_entry("owner/cli", COMPLETE, {"at_ms": 1, "jobs": [item]})
    hostile.plant_key("owner/cli", 0)
    _forge_end(hostile, after["job"], entry.op_id)
    return after


async def _failed(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    job = await owner.jobs.schedule("build", "bad")
    await build(owner, job)
    _forge_end(hostile, job.job_id, (await owner.jobs.find(job)).last_op)
    return {"job": job.job_id}


async def _no_such_op(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    return {"op": new_key()}


async def _op_of_a_stranger(owner: MeshNode, hostile: HostileWriter) -> dict[str, Any]:
    return {"op": hostile.plant_entry("owner/cli", NOTE.name, {}).op_id}


FORGERIES = (
    *(_not_begun, _only_a_row, _with_the_op_of_another, _with_an_op_of_a_stranger, _failed),
    *(_no_such_op, _op_of_a_stranger),
)


async def schedule_too_soon(node: MeshNode, hostile: HostileWriter, name: str, after: dict[str, Any]) -> None:
    """Schedule a job, and have it run at once."""
    job = await node.jobs.schedule("ship", name, after=[after], priority=3)
    hostile.run(f"UPDATE jobs SET waits = 0 {OF_JOB}", job.job_id)


async def test_no_job_runs_before_what_it_waits_for(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    for forge in FORGERIES:
        after = await forge(owner, hostile)
        await schedule_too_soon(owner, hostile, f"{forge.__name__} success", after)
        if "op" not in after and forge is not _failed:
            await schedule_too_soon(owner, hostile, f"{forge.__name__} end", after | {"when": "end"})
    await other.store.synced()
    assert await Shipping(other).run() == []
    assert other.jobs.authorship.forged == 11
    assert {job.attempts for job in await other.jobs.queries.listed(kind="ship", state=JobState.PENDING)} == {
        0
    }


async def test_no_job_runs_after_one_that_a_node_was_not_allowed_to_take(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.roles.route_kind("build", "owner")
    job = await owner.jobs.schedule("build", "routed")
    # A modified client leaves the guards out: here the route is gone while it claims.
    of_route = "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'RouteKind'"
    hostile.run(f"UPDATE agent_oplog SET accepted = 0, reason = 'x' {of_route}")
    await other.store.synced()
    await build(other, job)
    hostile.run(f"UPDATE agent_oplog SET accepted = 1, reason = NULL {of_route}")
    await owner.jobs.schedule("ship", "never", after=[job], priority=3)
    await owner.store.synced()
    assert await Shipping(owner).run() == []
    assert owner.jobs.authorship.forged == 1


# --- the same without an attacker -----------------------------------------------------------------


async def _succeeded(owner: MeshNode) -> tuple[dict[str, str], str]:
    job = await owner.jobs.schedule("build", "built")
    await build(owner, job)
    return {"job": job.job_id}, "built"


async def _unsuccessful(owner: MeshNode) -> tuple[dict[str, str], str]:
    job = await owner.jobs.schedule("build", "bad")
    await build(owner, job)
    return {"job": job.job_id, "when": "end"}, ""


async def _aborted(owner: MeshNode) -> tuple[dict[str, str], str]:
    job = await owner.jobs.schedule("build", "unwanted")
    await owner.jobs.abort(job)
    return {"job": job.job_id, "when": "end"}, ""


async def _expired(owner: MeshNode) -> tuple[dict[str, str], str]:
    """Its worker is lost, and it must not run twice."""
    job = await owner.jobs.schedule("build", "lost", max_interruptions=0)
    item = {"job_id": job.job_id, "claim_token": 1}
    await owner.store.write_all(owner.jobs.transitions.take([item], [item], -1))
    assert await owner.jobs.expire([await owner.jobs.find(job)]) == [job.job_id]
    return {"job": job.job_id, "when": "end"}, ""


async def _failed_with_its_predecessor(owner: MeshNode) -> tuple[dict[str, str], str]:
    first = await owner.jobs.schedule("build", "bad")
    second = await owner.jobs.schedule("build", "never", after=[first])
    third = await owner.jobs.schedule("build", "never", after=[second])
    await build(owner, third)
    assert (await owner.jobs.find(third)).state == "failed"
    return {"job": third.job_id, "when": "end"}, ""


async def _after_its_retry(owner: MeshNode) -> tuple[dict[str, str], str]:
    job = await owner.jobs.schedule("build", "built")
    await owner.jobs.abort(job)
    again = await owner.jobs.retry(job)
    await build(owner, again)
    return {"job": again.job_id}, "built"


async def _op(owner: MeshNode) -> tuple[dict[str, str], str]:
    return {"op": (await owner.oplog.append(NOTE.name, {})).key}, ""


ENDS = (
    *(_succeeded, _unsuccessful, _aborted, _expired, _failed_with_its_predecessor, _after_its_retry),
    _op,
)


async def test_a_job_runs_after_every_genuine_end(owner: MeshNode, other: MeshNode) -> None:
    expected = []
    for end in ENDS:
        after, result = await end(owner)
        await owner.jobs.schedule("ship", end.__name__, after=[after], priority=3)
        expected.append((end.__name__, *([result] if result else [])))
    await other.store.synced()
    assert await Shipping(other).run() == expected
    assert other.jobs.authorship.forged == 0


async def test_a_retried_successor_waits_for_the_retry_of_its_predecessor(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    first = await owner.jobs.schedule("build", "built")
    then = await owner.jobs.schedule("ship", "again", after=[first], priority=3)
    await owner.jobs.abort(first)
    retried = await owner.jobs.retry_all([await owner.jobs.find(each) for each in (first, then)])
    hostile.run(f"UPDATE jobs SET waits = 0 {OF_JOB}", retried[1].job_id)
    await other.store.synced()
    shipping = Shipping(other)
    assert await shipping.run() == []
    await build(owner, retried[0])
    other.jobs.authorship._doubted_until.clear()
    await other.store.synced()
    assert await shipping.run() == [("again", "built")]
