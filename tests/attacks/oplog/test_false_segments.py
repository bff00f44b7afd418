"""A node that joined records segments that no archive has: archiving goes on, and the owner voids them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retention.test_archiving import archived, maintenance_of
from tests.support.messages.messaging import NodeGroup
from tests.support.oplog.deletions import (
    archive_of,
    delete_archived,
    fill_archive,
    problems,
    register_notes,
    void,
)
from vox_mesh import Script
from vox_mesh.errors import ArchiveFailed, BadValue, NotKnown
from vox_mesh.model.oplog.segment import ARCHIVE, NO_SEGMENT, Segment, void_payload
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.node import MeshNode
from vox_mesh.nodes.census import take_census
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.oplog.archive.segment_ops import SegmentOps
from vox_mesh.store.script import Op
from vox_mesh.store.targets.target import FolderTarget

_FALSE = "f" * 64


async def recorded(node: MeshNode) -> list[Segment]:
    """The segments as the log records them."""
    await node.store.synced()
    return [each.segment for each in (await SegmentOps(node.store, node.trusted_keys).read()).recorded]


async def plant(node: MeshNode, owner: MeshNode, times: int = 1) -> None:
    """Record, as this node, segments that no archive has; the first also lies about the owner's chain."""
    for _ in range(times):
        found = await recorded(node)
        number, after_id, previous = found[-1].end if found else (0, 0, NO_SEGMENT)
        heads = {owner.identity.chain: (2, _FALSE)}
        last_id = (await node.oplog.tail(1))[-1].id
        false = Segment(number + 1, after_id, last_id, 1, 1, _FALSE, previous, heads)
        await node.store.write(Script(op=Op(ARCHIVE, false.payload, signed=True)))
    await node.store.synced()


async def missing_of(node: MeshNode) -> int:
    """The number of the first missing segment, as metrics show it; 0 if there is none."""
    await node.store.synced()
    census = await take_census(node.store, node.clock, kinds=1, budgets=1, timeout=5.0)
    return census.pruning["archive-missing"].pruned


@pytest.mark.parametrize("times", [1, 3])
async def test_false_segments_of_a_node_do_not_keep_the_owner_from_archiving(
    crowd: NodeGroup, tmp_path: Path, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    (first,) = await archived(owner, folder)
    await plant(liar, owner, times)
    (second,) = await archived(owner, folder, interval_s=0.0)
    assert (second.number, second.previous) == (2, first.sha256)
    assert [each.number for each in await recorded(liar)] == [1, 2]
    assert await problems(liar, FolderTarget(folder)) == []
    assert caplog.text.count("segment declared void") == 1
    assert await archived(owner, folder, interval_s=0.0) != []
    assert caplog.text.count("segment declared void") == 1


async def test_any_number_of_false_segments_is_declared_void_at_once(
    crowd: NodeGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    (first,) = await archived(owner, folder)
    await liar.store.synced()
    after, lies = first, []
    for _ in range(600):
        number, last_id, previous = after.end
        after = Segment(number + 1, last_id, last_id + 1, 1, 1, _FALSE, previous, {})
        lies.append(Script(op=Op(ARCHIVE, after.payload, signed=True)))
    await liar.store.write_all(lies)
    assert len(await recorded(liar)) == 601
    await owner.store.synced()
    (second,) = await archived(owner, folder, interval_s=0.0)
    assert await recorded(owner) == [first, second]
    assert caplog.text.count("segment declared void") == 1


async def test_a_false_segment_written_while_another_is_archived_does_not_replace_it(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")

    class Watched(FolderTarget):
        async def put(self, name: str, file: Path) -> None:
            await super().put(name, file)
            await plant(liar, owner)
            await liar.store.write(Script(op=Op(ARCHIVE, '{"junk":1}', signed=True)))

    await archived(owner, tmp_path / "archive")
    archive = archive_of(owner, Watched(tmp_path / "archive"))
    (second,) = await archive.run_once(0, max_entries=1_000)
    assert [each.sha256 for each in await recorded(owner)][1] == second.sha256


async def test_only_the_owner_declares_segments_void(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    (first,) = await archived(owner, folder)
    (op,) = await owner.oplog.tail(kind=ARCHIVE)
    await liar.store.write(Script(op=Op(ARCHIVE, void_payload(op.op_id), signed=True)))
    assert await recorded(owner) == [first]
    with pytest.raises(BadValue, match="only the owner"):
        await void(liar, FolderTarget(folder), 1)


async def test_another_node_names_the_false_segment_and_the_owner_declares_it_void(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    await plant(liar, owner)  # with no segment before it, the archive may also be another one
    for node in (owner, liar):
        await node.store.synced()
        with pytest.raises(ArchiveFailed, match="does not have segment 1") as failed:
            await maintenance_of(node, folder, 0.0).run_once()
        assert "--void" in (failed.value.hint or "")
    await owner.store.synced()
    with pytest.raises(NotKnown, match="segment 7"):
        await void(owner, FolderTarget(folder), 7)
    assert (await void(owner, FolderTarget(folder), 1)).sha256 == _FALSE
    await liar.store.synced()
    (first,) = await archived(liar, folder, interval_s=0.0)
    assert await recorded(owner) == [first]
    assert await problems(owner, FolderTarget(folder)) == []


async def test_an_archive_that_is_away_has_nothing_declared_void(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    (first,) = await archived(owner, folder)
    await other.store.synced()
    (second,) = await archived(other, folder, interval_s=0.0)
    folder.rename(tmp_path / "unmounted")
    await owner.store.synced()
    with pytest.raises(ArchiveFailed, match="does not have segment 1"):
        await archived(owner, folder, interval_s=0.0)
    assert await recorded(owner) == [first, second]


async def test_a_segment_whose_entries_may_be_deleted_is_never_void(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    register_notes(owner)
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    assert await delete_archived(owner, target) > 0
    register_notes(other)
    await other.store.synced()
    (second,) = await archive_of(other, target).run_once(0)
    await owner.store.synced()
    assert await delete_archived(owner, target) >= 0
    with pytest.raises(BadValue, match="may be deleted"):
        await void(owner, target, 1)
    (tmp_path / "archive" / second.file_name).unlink()
    with pytest.raises(ArchiveFailed, match="does not have segment 2"):
        await archive_of(owner, target).false_segments.checked()


@pytest.mark.parametrize("archiver", ["owner", "another"])
async def test_a_false_segment_recorded_while_the_log_is_verified_is_not_built_upon(
    crowd: NodeGroup, tmp_path: Path, archiver: str
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    node = owner if archiver == "owner" else await crowd.node("three")
    folder = tmp_path / "archive"
    (first,) = await archived(owner, folder)
    await node.store.synced()
    lies = iter([1])

    async def verify() -> list[ChainReport]:
        if next(lies, None):
            await plant(liar, owner)
        return []

    parts = (node.store, node.identity, node.clock, node.trusted_keys)
    archive = LogArchive(*parts, verify, FolderTarget(folder))
    if node is owner:
        (second,) = await archive.run_once(0)
        assert (second.number, second.previous) == (2, first.sha256)
        assert await recorded(liar) == [first, second]
    else:
        with pytest.raises(ArchiveFailed, match=r"does not have segment 2 .* op \S+ of two"):
            await archive.run_once(0)
        assert [each.number for each in await recorded(liar)] == [1, 2]


async def test_false_segments_after_a_lost_one_are_void_and_the_lost_one_is_named(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    owner, liar = await crowd.node("one"), await crowd.node("two")
    folder = tmp_path / "archive"
    segments = [*await archived(owner, folder), *await archived(owner, folder, 0.0)]
    (folder / segments[0].file_name).unlink()
    await plant(liar, owner)
    await owner.store.synced()

    async def verify() -> list[ChainReport]:
        return []

    parts = (owner.store, owner.identity, owner.clock, owner.trusted_keys)
    archive = LogArchive(*parts, verify, FolderTarget(folder))
    (third,) = await archive.run_once(0)
    assert await recorded(owner) == [*segments, third]
    missing = await archive.false_segments.first_missing()
    assert missing is not None
    assert missing.segment == segments[0]


async def test_a_pass_names_the_first_segment_that_the_archive_has_lost(
    crowd: NodeGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await crowd.node("one")
    folder = tmp_path / "archive"
    segments = [*await archived(owner, folder), *await archived(owner, folder, 0.0)]
    segments += await archived(owner, folder, 0.0)
    lost = [folder / each.file_name for each in segments[:2]]
    contents = [each.read_bytes() for each in lost]
    for path in lost:
        path.unlink()
    turns = maintenance_of(owner, folder, 0.0)
    owner.health.archive = turns
    (fourth,) = await turns.run_once()  # archiving goes on: the file may be lost for good
    assert fourth.number == 4
    assert "does not have segment 1 " in caplog.text
    (check,) = [each for each in owner.health.checks() if each.name == "archive"]
    assert "does not have segment 1 " in check.detail
    assert "--void 1" in check.detail
    assert (await missing_of(owner)) == 1
    for path, content in zip(lost, contents, strict=True):
        path.write_bytes(content)
    await turns.run_once()
    assert turns.fault == ""
    assert (await missing_of(owner)) == 0
