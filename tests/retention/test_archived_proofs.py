"""Proofs of jobs whose ops were deleted from the database: they are verified by the archive of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retention.test_jobs import keep_no_jobs, pruned
from tests.support.messages.messaging import write
from tests.support.oplog.bucket import KEY_ID, SECRET, open_bucket
from tests.support.oplog.deletions import delete_archived, entries_of, fill_archive
from vox_mesh import JobContext, OpKind
from vox_mesh.errors import ArchiveFailed, NotKnown
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.node import MeshNode
from vox_mesh.store.targets.aws_signature import Credentials
from vox_mesh.store.targets.s3_target import S3Target
from vox_mesh.store.targets.target import FileTarget, FolderTarget
from vox_mesh.testing import MeshHarness
from vox_mesh.views.jobs import ProofView, bundle_proof, verify_proof


async def archived_job(node: MeshNode, target: FileTarget, *, is_whole: bool = True) -> tuple[ProofView, str]:
    """A job that was done and pruned, and whose ops were archived and deleted: its proof before, its ULID.

    Otherwise the op that pruned it stays, next to one that governs something.
    """
    node.oplog.register(OpKind("note"))

    @node.worker.handles("work")
    async def work(context: JobContext) -> str:
        return "done"

    await node.store.write(node.oplog.seal_script())
    await node.worker.start()
    ids = []
    for number in range(3):
        ids.append((await node.jobs.schedule("work", number)).job_id)
        await node.jobs.wait(ids[-1], timeout=30)
        await node.store.write(node.oplog.seal_script())
    job_id = ids[0]
    before, ulid = await verify_proof(node, job_id), (await node.jobs.find(job_id)).ulid
    await keep_no_jobs(node)
    if is_whole:
        await node.store.write(node.oplog.seal_script())
    await pruned(node)
    await node.store.write(node.oplog.seal_script())
    await fill_archive(node, target)
    await node.store.synced()
    assert before.valid
    assert await delete_archived(node, target) > 20
    await node.store.synced()
    left = [each.kind for each in await entries_of(node) if job_id in each.payload and each.kind != DELETE]
    assert left == ([] if is_whole else [PRUNE])
    return before, ulid


async def verify_everywhere(node: MeshNode, target: FileTarget) -> None:
    """Verify and bundle the proof of an archived job by all of its names."""
    before, ulid = await archived_job(node, target)
    job_id = before.job_id
    with pytest.raises(NotKnown) as missing:
        await verify_proof(node, job_id)
    assert "--archive" in missing.value.hint
    node.find_archive = lambda: target
    for reference in (job_id, job_id[:8], ulid):
        after = await verify_proof(node, reference)
        assert (after.job_id, after.valid, after.archived) == (job_id, True, True)
        assert (after.state, after.trailers) == (before.state, before.trailers)
        assert f"its ops were read from the archive {target}" in after.remarks[0]
    assert job_id in (await bundle_proof(node, job_id)).text
    with pytest.raises(NotKnown):
        await verify_proof(node, "ab" * 32)


async def test_the_proof_of_an_archived_job_is_verified_from_a_folder(
    harness: MeshHarness, tmp_path: Path
) -> None:
    await verify_everywhere(await harness.node(), FolderTarget(tmp_path / "archive"))


async def test_the_proof_of_an_archived_job_is_verified_from_a_bucket(harness: MeshHarness) -> None:
    async with open_bucket() as bucket:
        await verify_everywhere(
            await harness.node(), S3Target(bucket.url, Credentials(KEY_ID, SECRET, "here"))
        )


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("absent", "is missing"),
        ("lost", "is missing"),
        ("cut off", "bytes, and the log records"),
        ("changed", "it has the digest"),
        ("replaced", "bytes, and the log records"),
    ],
)
async def test_another_archive_than_the_recorded_one_is_named_in_one_line(
    harness: MeshHarness, tmp_path: Path, how: str, what: str
) -> None:
    node, folder = await harness.node(), tmp_path / "archive"
    before, _ = await archived_job(node, FolderTarget(folder))
    (file,) = folder.iterdir()
    content = file.read_bytes()
    if how == "absent":
        folder.rename(tmp_path / "elsewhere")
    elif how == "lost":
        file.unlink()
    elif how == "cut off":
        file.write_bytes(content[:-20])
    elif how == "changed":
        file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    else:
        file.write_bytes(b"another archive")
    node.find_archive = lambda: FolderTarget(folder)
    with pytest.raises(ArchiveFailed, match=what) as failed:
        await verify_proof(node, before.job_id)
    assert "\n" not in failed.value.line


async def test_a_database_that_contradicts_its_archive_is_noticed(
    harness: MeshHarness, tmp_path: Path
) -> None:
    node, target = await harness.node(), FolderTarget(tmp_path / "archive")
    before, _ = await archived_job(node, target)
    node.find_archive = lambda: target
    sql = "UPDATE agent_oplog SET reason = 'x' WHERE scope_id = ?1 AND repository_id = ?2 AND seq = ?3"
    await write(node, sql, (await entries_of(node))[0].seq)
    with pytest.raises(ArchiveFailed, match="the database differ"):
        await verify_proof(node, before.job_id)


async def test_a_job_of_which_some_ops_remain_is_read_from_the_archive(
    harness: MeshHarness, tmp_path: Path
) -> None:
    node, target = await harness.node(), FolderTarget(tmp_path / "archive")
    before, _ = await archived_job(node, target, is_whole=False)
    assert before.job_id in (await node.oplog.deleted()).jobs
    with pytest.raises(NotKnown):
        await verify_proof(node, before.job_id)
    node.find_archive = lambda: target
    assert (await verify_proof(node, before.job_id)).trailers == before.trailers
