"""The archive of the log: complete after any kill, and noticed if it is changed, replaced or lost."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.oplog.bucket import KEY_ID, SECRET, open_bucket, signature_of
from tests.support.oplog.exports import log_of_two_chains
from tests.support.oplog.tampering import Intruder
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.errors import ArchiveFailed, BadSettings
from vox_mesh.model.oplog.segment import ARCHIVE, FILE_PREFIX
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.runtime.archive_target import archive_target
from vox_mesh.store.script import Op, Script
from vox_mesh.store.targets.aws_signature import Credentials
from vox_mesh.store.targets.s3_target import S3Target
from vox_mesh.store.targets.target import FileTarget, FolderTarget


class Killed(BaseException):
    """The process is gone."""


class DyingTarget(FolderTarget):
    """A folder whose process is killed before or after a file is written, or while it is read back."""

    def __init__(self, folder: Path, moment: str) -> None:
        super().__init__(folder)
        self._moment = moment

    async def put(self, name: str, file: Path) -> None:
        """Store a file, or die."""
        if self._moment == "half written":
            draft = self._folder / f".{name}.draft"
            draft.parent.mkdir()
            await asyncio.to_thread(lambda: draft.write_bytes(file.read_bytes()[:100]))
        if self._moment in ("before writing", "half written"):
            raise Killed
        await super().put(name, file)
        if self._moment == "written":
            raise Killed

    @asynccontextmanager
    async def get(self, name: str, size: int) -> AsyncIterator[Path]:
        """Open a file, and die after it was read."""
        async with super().get(name, size) as path:
            yield path
        if self._moment == "read back":
            raise Killed


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node whose log has two chains."""
    async with log_of_two_chains(tmp_path) as node:
        yield node


def archive_of(mesh: Mesh, target: FileTarget) -> LogArchive:
    """The archive of a mesh in a target."""
    return LogArchive(mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys, mesh.oplog.verify, target)


async def faults(mesh: Mesh, target: FileTarget | None) -> list[str]:
    """What verification finds."""
    reports = await mesh.oplog.verify(archive=target)
    return [each.problem for each in reports if each.problem is not None]


async def test_archive_and_rest_are_verified_as_the_whole_log_is(node: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    archive = archive_of(node, target)
    first = await archive.run_once(0, max_entries=3)
    await fill_again(node)
    second = await archive.run_once(0, max_entries=1_000)
    segments = [*first, *second]
    assert [each.number for each in segments] == [*range(1, len(segments) + 1)]
    assert [each.entries for each in first][:-1] == [3] * (len(first) - 1)
    assert [each.segment for each in (await archive.segments()).recorded] == segments
    assert await node.oplog.verify(archive=target) == await node.oplog.verify()
    chain = node.identity.chain
    assert await node.oplog.verify(chain, archive=target) == await node.oplog.verify(chain)
    assert await archive.run_once(3_600_000) == []


async def fill_again(node: MeshNode) -> None:
    """Add some more entries."""
    for number in range(5):
        await node.oplog.append("note", {"again": number})
    await node.store.write(node.oplog.seal_script())


async def test_an_export_shows_segments_as_anchors(node: MeshNode, tmp_path: Path) -> None:
    await archive_of(node, FolderTarget(tmp_path / "archive")).run_once(0)
    await export_log(node.oplog, *node.store.mesh_id, tmp_path / "log.jsonl")
    assert verify_export(tmp_path / "log.jsonl").chains == await node.oplog.verify()
    own = next(each for each in await node.oplog.verify() if each.node_id == node.identity.chain)
    (op,) = await node.oplog.tail(kind=ARCHIVE)
    assert own.anchored_to == op.seq - 1


@pytest.mark.parametrize("moment", ["before writing", "half written", "written", "read back"])
async def test_after_a_kill_nothing_is_missing_and_archiving_goes_on(
    node: MeshNode, tmp_path: Path, moment: str
) -> None:
    folder = tmp_path / "archive"
    with pytest.raises(Killed):
        await archive_of(node, DyingTarget(folder, moment)).run_once(0)
    assert await faults(node, FolderTarget(folder)) == []
    assert (await node.oplog.tail(kind=ARCHIVE)) == []
    (segment,) = await archive_of(node, FolderTarget(folder)).run_once(0)
    assert segment.number == 1
    assert await faults(node, FolderTarget(folder)) == []


async def test_of_two_that_archive_at_once_one_records_each_segment(node: MeshNode, tmp_path: Path) -> None:
    targets = [FolderTarget(tmp_path / "archive") for _ in range(2)]
    done = await asyncio.gather(*(archive_of(node, each).run_once(0, max_entries=4) for each in targets))
    recorded = (await archive_of(node, targets[0]).segments()).recorded
    assert sorted(each.number for part in done for each in part) == [each.segment.number for each in recorded]
    assert await faults(node, targets[0]) == []


@pytest.mark.parametrize("how", ["cut off", "changed", "replaced", "lost", "of an earlier time"])
async def test_another_file_than_the_archived_one_is_noticed(
    node: MeshNode, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "archive"
    target = FolderTarget(folder)
    archive = archive_of(node, target)
    (first,) = await archive.run_once(0)
    await fill_again(node)
    (second,) = await archive.run_once(0)
    path = folder / (second if how == "of an earlier time" else first).file_name
    content = path.read_bytes()
    if how == "cut off":
        path.write_bytes(content[:-20])
    elif how == "changed":
        path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    elif how == "replaced":  # by a segment that is as well formed, and of another content
        lines = gzip.decompress(content).replace(b'"n":1', b'"n":7')
        path.write_bytes(gzip.compress(lines, mtime=0))
    else:
        path.unlink()
    (fault,) = await faults(node, target)
    assert path.name in fault
    assert await faults(node, None) == []


async def test_a_database_that_differs_from_its_archive_is_noticed(node: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await archive_of(node, target).run_once(0)
    intruder = Intruder(node.store)
    entry = (await intruder.entries(node.identity.chain))[2]
    await intruder.set(node.identity.chain, entry.seq, reason="another")
    found = await faults(node, target)
    assert any(f"entry {entry.id}" in each and "differ" in each for each in found)


@pytest.mark.parametrize("kind", ["junk", "far", "gap"])
async def test_an_op_that_records_no_next_segment_is_skipped_and_named(
    node: MeshNode, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = FolderTarget(tmp_path / "archive")
    archive = archive_of(node, target)
    (segment,) = await archive.run_once(0)
    last = (await node.oplog.tail(1))[-1]
    bogus = segment._replace(number=2, after_id=segment.last_id, previous=segment.sha256, last_id=10**15)
    payloads = {
        "junk": '{"x":1}',
        "far": bogus.payload,
        "gap": bogus._replace(number=3, last_id=last.id).payload,
    }
    written = await node.store.write(Script(op=Op(ARCHIVE, payloads[kind], signed=True)))
    reasons = {
        "junk": "no segment is recorded",
        "far": "segment 2 of the log has entries that were not written before it",
        "gap": "segment 3 of the log does not follow the one before it",
    }
    assert await faults(node, None) == []
    assert f"op skipped: {reasons[kind]}: op {written.key} of {node.identity.chain}" in caplog.text
    (after,) = await archive.run_once(0)
    assert (after.number, after.after_id) == (2, segment.last_id)
    assert after.last_id > last.id
    assert [each.number for each in await archive.run_once(0)] == [3]  # the op that recorded the second one
    assert len((await archive.segments()).recorded) == 3
    assert await faults(node, target) == []


async def test_a_broken_log_is_not_archived(node: MeshNode, tmp_path: Path) -> None:
    intruder = Intruder(node.store)
    await intruder.set(node.identity.chain, 2, payload='{"n":7}')
    with pytest.raises(ArchiveFailed, match="the log is broken, and is not archived"):
        await archive_of(node, FolderTarget(tmp_path / "archive")).run_once(0)


async def test_a_segment_is_refused_if_its_entries_were_lost_meanwhile(
    node: MeshNode, tmp_path: Path
) -> None:
    archive = archive_of(node, FolderTarget(tmp_path / "archive"))
    (segment,) = await archive.run_once(0)
    (op,) = await node.oplog.tail(kind=ARCHIVE)
    script = archive._ops.script(segment._replace(number=2, last_id=10_000), op.op_id, op.op_id)
    (verdict,) = await node.store.write_all([script])
    assert getattr(verdict, "reason", None) == "entries_lost"


# --- a bucket ---------------------------------------------------------------------------------------


def test_the_bucket_checks_signatures_as_aws_documents_them() -> None:
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(),
    }
    names, scope = ";".join(sorted(headers)), "20130524/us-east-1/s3/aws4_request"
    made = signature_of("GET", "/", "lifecycle=", headers, names, scope)
    assert made == "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"


async def test_segments_are_kept_in_a_bucket(node: MeshNode) -> None:
    async with open_bucket() as bucket:
        target = S3Target(bucket.url, Credentials(KEY_ID, SECRET, "eu-central-1"))
        (segment,) = await archive_of(node, target).run_once(0)
        (path,) = bucket.objects
        assert path == f"/a%20bucket/mesh/{segment.file_name}"
        assert await faults(node, target) == []
        bucket.objects[path] += b"more"
        (fault,) = await faults(node, target)
        assert f"larger than {segment.bytes} bytes" in fault
        del bucket.objects[path]
        (fault,) = await faults(node, target)
        assert "404" in fault
        assert bucket.refused == 0


async def test_the_recorded_segments_are_compared_with_one_listing_of_a_bucket(node: MeshNode) -> None:
    async with open_bucket() as bucket:
        target = S3Target(bucket.url, Credentials(KEY_ID, SECRET, "eu-central-1"))
        segments = await archive_of(node, target).run_once(0, max_entries=3)
        assert len(segments) > 3
        bucket.objects["/a%20bucket/mesh2/segment-1"] = bucket.objects["/a%20bucket/backup"] = b"another"
        bucket.requests.clear()
        assert await archive_of(node, target).false_segments.first_missing() is None
        newest = f"/a%20bucket/mesh/{segments[-1].file_name}"
        assert bucket.requests == ["GET /a%20bucket", f"GET {newest}"]
        del bucket.objects[f"/a%20bucket/mesh/{segments[1].file_name}"]
        missing = await archive_of(node, target).false_segments.first_missing()
        assert missing is not None
        assert missing.segment == segments[1]
        bucket.page_size = 2
        sizes = await target.list_sizes(FILE_PREFIX)
        assert sizes == {each.file_name: each.bytes for each in segments if each != segments[1]}
        assert bucket.refused == 0


async def test_a_folder_lists_the_files_with_a_prefix(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    assert await target.list_sizes(FILE_PREFIX) == {}
    (tmp_path / "archive" / "segment-folder").mkdir(parents=True)
    (tmp_path / "archive" / "segment-1").write_bytes(b"abc")
    (tmp_path / "archive" / "other").write_bytes(b"abc")
    assert await target.list_sizes(FILE_PREFIX) == {"segment-1": 3}


async def test_a_bucket_that_refuses_the_key_leaves_nothing_recorded(node: MeshNode) -> None:
    async with open_bucket() as bucket:
        target = S3Target(bucket.url, Credentials(KEY_ID, "another", "us-east-1"))
        with pytest.raises(ArchiveFailed, match="403"):
            await archive_of(node, target).run_once(0)
        assert bucket.refused == 1
        assert await node.oplog.tail(kind=ARCHIVE) == []


def test_the_settings_name_one_archive(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    url = {"archive_url": "https://s3.example.com/bucket"}
    for update, message in (({}, "neither"), (url | {"archive_dir": tmp_path}, "both set"), (url, "key")):
        with pytest.raises(BadSettings, match=message):
            archive_target(settings.model_copy(update=update))
