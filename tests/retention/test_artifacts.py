"""Artifacts go with the last job that has them, and their files later, and not while they may be needed."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from tests.retention.test_messages import prune
from tests.support.jobs.staging import schedule
from tests.support.messages.messaging import write
from vox_mesh import JobContext, Script
from vox_mesh.jobs.proof.artifacts import MAX_INLINE
from vox_mesh.jobs.proof.blob_files import BlobStamp, BlobStore
from vox_mesh.jobs.work.reports import Report, ReportedOutcome
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import hash_of
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness

LARGE = bytes(range(256)) * (MAX_INLINE // 128)
HASH = hash_of(LARGE)
_DONE = Report(ReportedOutcome.SUCCEEDED)
_DATED = "UPDATE job_artifacts SET used_ms = ?3 WHERE scope_id = ?1 AND repository_id = ?2"


async def worker(harness: MeshHarness, name: str = "local") -> MeshNode:
    """A node whose jobs keep the content that their payload names."""
    node = await harness.node(name)

    @node.worker.handles("work")
    async def work(context: JobContext) -> None:
        await context.keep("out", LARGE if context.payload == "large" else str(context.payload))

    @node.worker.handles("fail")
    async def fail(context: JobContext) -> None:
        await context.keep("out", LARGE)
        raise ValueError

    await node.worker.start()
    return node


async def run(node: MeshNode, payload: str = "large") -> str:
    """A job that has an output, and has ended."""
    job_id = (await node.jobs.schedule("work", payload)).job_id
    await node.jobs.wait(job_id, timeout=30)
    return job_id


async def kept(node: MeshNode) -> list[str]:
    """The hashes of the artifacts that have a row."""
    sql = "SELECT hash FROM job_artifacts WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY id"
    return [row["hash"] for row in await node.store.read(sql, node.store.mesh_id, fresh=True)]


def file_of(node: MeshNode, content_hash: str = HASH) -> Path | None:
    """The file of an artifact, if the node has it."""
    return node.artifacts.local_path(content_hash)


async def remove_row(node: MeshNode) -> None:
    """Have the artifact pruned, as if its jobs had been long ago."""
    await node.retention.set("jobs", age_ms=None, max_rows=0)
    await schedule(node)
    await write(node, _DATED, 1)
    assert (await prune(node))["artifacts"] == (1, 0)
    assert await kept(node) == []


async def test_a_content_that_jobs_share_goes_with_the_last_of_them_and_its_file_later(
    harness: MeshHarness,
) -> None:
    node = await worker(harness)
    first = await run(node)
    await harness.clock.advance("10d")
    second = await run(node)
    await schedule(node)
    await harness.clock.advance("21d")
    await node.retention.prune_all()
    jobs = [job.job_id for job in await node.jobs.queries.listed(limit=10)]
    assert (first in jobs, second in jobs) == (False, True)
    assert await kept(node) == [HASH]
    assert (await node.artifacts.body(HASH)) == LARGE
    await harness.clock.advance("10d")
    await node.retention.prune_all()
    assert await kept(node) == []
    assert file_of(node) is not None
    await harness.clock.advance("30m")
    assert file_of(node) is not None
    await harness.clock.advance("2h")
    assert file_of(node) is None
    await harness.clock.advance("8d")
    await node.retention.prune_all()
    sql = "SELECT count(*) FROM artifact_removals"
    assert (await node.store.read(sql, fresh=True)).value == 0


async def test_the_artifact_of_a_job_that_is_kept_stays(harness: MeshHarness) -> None:
    node = await worker(harness)
    await run(node, "small")
    await run(node, "other")
    await node.retention.set("jobs", age_ms=None)
    await node.retention.set("artifacts", age_ms=1_000)
    await harness.clock.advance("40d")
    assert await prune(node) == {"artifacts": (0, 2)}
    await node.retention.set("jobs", age_ms=1_000)
    await schedule(node)
    done = {each.subject: each.pruned for each in await node.retention.prune_all()}
    assert (done["jobs"], done["artifacts"]) == (2, 2)


async def test_they_are_bounded_by_number_and_bytes(harness: MeshHarness) -> None:
    node = await worker(harness)
    for number in range(5):
        await run(node, f"output {number}")
    await schedule(node)
    await node.retention.set("jobs", age_ms=None, max_rows=0)
    await node.retention.set("artifacts", age_ms=None, max_rows=4)
    assert await prune(node) == {"jobs": (5, 0)}  # a job may have used them a moment ago
    await write(node, _DATED, 1)
    assert await prune(node) == {"artifacts": (1, 0)}
    await node.retention.set("artifacts", age_ms=None, max_bytes=20)  # of 8 each
    assert await prune(node) == {"artifacts": (2, 0)}
    assert len(await kept(node)) == 2


async def test_what_an_agent_has_kept_stays_while_it_holds_the_job(harness: MeshHarness) -> None:
    node = await harness.node()
    await node.jobs.schedule("review", 1)
    (taken,) = await node.work.take("ada", ["review"])
    await node.work.keep(taken.job, taken.job.claim_token, "notes", b"notes")
    await write(node, _DATED, 1)
    assert await prune(node) == {"artifacts": (0, 1)}


async def test_the_result_of_a_step_stays_with_its_job(harness: MeshHarness) -> None:
    node = await worker(harness)
    job_id = await run(node, "small")
    step = "INSERT INTO job_steps VALUES (?1, ?2, ?3, 1, 1, 's', 'k', 'done', ?4, 1, 1, 1, 'l', 'o', NULL)"
    await write(node, step, job_id, orjson.dumps({"artifact": HASH, "size": 1}).decode())
    rows = node.artifacts.rows([await node.artifacts.keep(LARGE, name="step-1", type="text/plain")])
    assert rows is not None
    await node.store.write(Script(rows))
    await node.retention.set("jobs", age_ms=None)
    await harness.clock.advance("40d")
    assert len(await kept(node)) == 2


@pytest.mark.parametrize(
    "pointer", [{"hash": HASH}, {"algo": "blake3", "hash": HASH.removeprefix("blake3:")}]
)
async def test_the_input_of_a_job_that_has_not_ended_stays(
    harness: MeshHarness, pointer: dict[str, str]
) -> None:
    node = await worker(harness)
    await run(node)
    manifest = Manifest.of(kind="later", payload=1, inputs=(pointer,))
    ((waiting, *_),) = await node.jobs.schedule_all([manifest])
    await harness.clock.advance("40d")
    assert await kept(node) == [HASH]
    await node.jobs.abort(waiting)
    await schedule(node)
    await node.retention.prune_all()
    assert await kept(node) == []


async def test_an_artifact_that_is_used_again_at_the_last_moment_stays(
    harness: MeshHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await worker(harness)
    await run(node, "small")
    await node.retention.set("jobs", age_ms=None, max_rows=0)
    await schedule(node)
    await write(node, _DATED, 1)
    page = node.store.read

    async def read(sql: str, *more: object, **named: object) -> object:
        rows = await page(sql, *more, **named)  # type: ignore[arg-type]
        if "NOT INDEXED WHERE id > ?3 AND OF_MESH" not in sql and "created_ms, used_ms" in sql:
            monkeypatch.setattr(node.store, "read", page)
            await run(node, "small")
        return rows

    monkeypatch.setattr(node.store, "read", read)
    await node.retention.prune_all()
    assert node.store.read == page
    assert await kept(node) == [hash_of(b"small")]


async def test_of_rows_of_an_older_version_pruning_notes_the_time_first(harness: MeshHarness) -> None:
    node = await worker(harness)
    await run(node, "small")
    await schedule(node)
    await write(node, _DATED, None)
    await harness.clock.advance("40d")
    assert len(await kept(node)) == 1
    await harness.clock.advance("31d")
    assert await kept(node) == []


async def test_a_file_that_is_stored_again_stays_until_it_is_known_whether_it_is_needed(
    harness: MeshHarness,
) -> None:
    node = await worker(harness)
    await run(node)
    await remove_row(node)
    await harness.clock.advance("1s")
    await node.artifacts.keep(LARGE, name="again", type="text/plain")  # of an attempt that has not ended
    await harness.clock.advance("2h")
    assert file_of(node) is not None
    await run(node)
    await harness.clock.advance("2h")
    assert await node.artifacts.body(HASH) == LARGE


async def test_a_file_stays_while_an_attempt_runs_that_may_have_stored_it(harness: MeshHarness) -> None:
    node = await worker(harness)
    await run(node)
    await node.jobs.schedule("review", 1)
    (taken,) = await node.work.take("ada", ["review"], lease="12h")
    await remove_row(node)
    await harness.clock.advance("2h")
    await harness.clock.advance("2h")
    assert file_of(node) is not None
    await node.work.report(taken.job, taken.job.claim_token, _DONE)
    await harness.clock.advance("1s")
    assert file_of(node) is None


async def test_the_file_of_a_failed_attempt_is_removed(harness: MeshHarness) -> None:
    node = await worker(harness)
    job_id = (await node.jobs.schedule("fail", backoff="1d", max_attempts=2)).job_id
    async for _ in node.store.changes(interval_s=0.1):
        if (await node.jobs.find(job_id)).failures:
            break
    assert file_of(node) is not None
    await harness.clock.advance("1s")
    await harness.clock.advance("2h")
    assert file_of(node) is None


async def test_copies_on_other_nodes_are_removed_too(harness: MeshHarness) -> None:
    node = await worker(harness)
    other = await harness.node("other")
    await other.artifacts.keep(LARGE, name="copy", type="text/plain")
    await run(node)
    await remove_row(node)
    await harness.clock.advance("1s")
    await harness.clock.advance("2h")
    assert (file_of(node), file_of(other)) == (None, None)


def test_a_blob_that_was_published_again_is_not_removed(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "artifacts")

    def put() -> BlobStamp:
        draft = blobs.draft()
        blobs.add(draft, LARGE)
        blobs.put(draft, HASH)
        draft.discard()
        found = blobs.stamp(HASH)
        assert found is not None
        return found

    put()
    os.utime(blobs.path_of(HASH), (1, 1))
    stamp = blobs.stamp(HASH)
    assert stamp is not None
    again = put()
    assert stamp != again
    assert not blobs.remove(HASH, stamp)
    assert blobs.remove(HASH, again)
    assert not blobs.remove(HASH, again)
