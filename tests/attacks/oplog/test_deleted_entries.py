"""An attacker who can write to the database, or who joined as a node, uses deletion to hide something."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.retention.test_jobs import done, keep_no_jobs
from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.deletions import delete_archived, entries_of, fill_archive, problems, register_notes
from tests.support.oplog.exports import log_of_two_chains
from vox_mesh import OpKind, Script
from vox_mesh.errors import ArchiveFailed
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import DELETE, DeletedRange, Deletion
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.segment_ops import SegmentOps
from vox_mesh.store.script import Op
from vox_mesh.store.targets.target import FolderTarget

_OF_MESH = "WHERE scope_id = ?1 AND repository_id = ?2"


async def own_chain(node: MeshNode) -> list[LogEntry]:
    """What is left of the node's chain."""
    return [each for each in await entries_of(node) if each.node_id == node.identity.chain]


def after_gap(entries: list[LogEntry]) -> int:
    """The place of the first entry after the first gap."""
    pairs = enumerate(pairwise(entries), 1)
    return next(place for place, (one, two) in pairs if two.seq != one.seq + 1)


async def remove(node: MeshNode, seq: int) -> None:
    """Delete an entry of the node's chain as a writer of the database can."""
    await write(
        node, f"DELETE FROM agent_oplog {_OF_MESH} AND node_id = ?3 AND seq = ?4", node.identity.chain, seq
    )


@pytest.mark.parametrize(
    "which", ["a governing one", "before the gap", "after the gap", "the op", "the segment"]
)
async def test_an_entry_that_was_not_let_be_deleted_is_missed(which: str, tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        await delete_archived(node, target)
        entries = await own_chain(node)
        gap = after_gap(entries)
        chosen = {
            "a governing one": entries[0],
            "before the gap": entries[gap - 1],
            "after the gap": entries[gap],
            "the op": next(each for each in entries if each.kind == DELETE),
            "the segment": next(each for each in entries if each.kind == "ArchiveSegment"),
        }[which]
        assert await problems(node) == []
        await remove(node, chosen.seq)
        assert await problems(node) != []
        assert await problems(node, target) != []


async def test_a_gap_does_not_let_a_verdict_be_changed(tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        await delete_archived(node, target)
        entries = await own_chain(node)
        await node.oplog.append("note", {"later": 1})
        await node.store.write(node.oplog.seal_script())
        for place in (0, after_gap(entries)):
            sql = f"UPDATE agent_oplog SET reason = 'x' {_OF_MESH} AND node_id = ?3 AND seq = ?4"
            await write(node, sql, node.identity.chain, entries[place].seq)
            assert any("were changed" in each or "never refused" in each for each in await problems(node))
            undo = f"UPDATE agent_oplog SET reason = NULL {_OF_MESH} AND node_id = ?3 AND seq = ?4"
            await write(node, undo, node.identity.chain, entries[place].seq)
        assert await problems(node) == []


async def test_a_node_that_is_not_the_owner_can_let_nothing_be_deleted(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    register_notes(owner)
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    await owner.store.synced()
    victim = (await own_chain(owner))[4:8]
    (recorded,) = (await SegmentOps(owner.store, owner.trusted_keys).read()).recorded
    ranges = [DeletedRange(victim[0].seq, victim[-1].seq, victim[0].prev, victim[-1].hash)]
    segment = recorded.segment
    forged = Deletion(segment.number, segment.sha256, segment.last_id, {owner.identity.chain: ranges}, [])
    await other.store.write(Script(op=Op(DELETE, forged.payload, signed=True)))
    for each in victim:
        await remove(owner, each.seq)
    await owner.store.synced()
    found = await problems(owner)
    assert any("only the owner may author it" in each for each in found)
    assert any("is missing" in each for each in found)


async def test_a_chain_that_is_put_among_deleted_entries_is_found(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    register_notes(owner)
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    await owner.store.synced()
    await delete_archived(owner, target)
    await owner.store.synced()
    other.oplog.register(OpKind("later"))
    await other.store.synced()
    done_op = await other.oplog.append("later", {})
    gap = after_gap(await own_chain(owner))
    free = (await own_chain(owner))[gap].id - 3
    await write(owner, f"UPDATE agent_oplog SET id = ?3 {_OF_MESH} AND op_id = ?4", free, done_op.key)
    await owner.store.synced()
    assert any("lies among archived entries" in each for each in await problems(owner))


async def test_a_leftover_that_was_changed_is_found(tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        before = {each.seq: each for each in await own_chain(node)}
        await delete_archived(node, target)
        left = {each.seq for each in await own_chain(node)}
        back = before[min(before.keys() - left)]
        names = ", ".join(LogEntry._fields)
        places = ", ".join(f"?{number}" for number in range(3, 3 + len(LogEntry._fields) - 1))
        columns = names.replace("repository_id, ", "")
        sql = f"INSERT INTO agent_oplog (scope_id, repository_id, {columns}) VALUES (?1, ?2, {places})"
        values = [value for name, value in back._asdict().items() if name != "repository_id"]
        await write(node, sql, *values)
        assert await problems(node) == []
        assert await problems(node, target) == []
        await write(node, f"UPDATE agent_oplog SET payload = '{{}}' {_OF_MESH} AND op_id = ?3", back.op_id)
        assert any("do not have its hash" in each for each in await problems(node))
        assert any("differ" in each for each in await problems(node, target))


@pytest.mark.parametrize("how", ["lost", "changed"])
async def test_nothing_is_deleted_that_the_archive_does_not_have(how: str, tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        (path,) = (tmp_path / "archive").iterdir()
        if how == "lost":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        before = await entries_of(node)
        with pytest.raises(ArchiveFailed):
            await delete_archived(node, target)
        assert await entries_of(node) == before


async def test_an_archive_that_was_lost_or_put_back_after_a_deletion_is_noticed(tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        await delete_archived(node, target)
        await fill_archive(node, target)
        first, second = sorted((tmp_path / "archive").iterdir())
        second.unlink()
        assert any(second.name in each for each in await problems(node, target))
        first.unlink()
        assert any(first.name in each for each in await problems(node, target))


async def test_ops_of_a_job_whose_row_was_removed_stay(local: MeshNode, tmp_path: Path) -> None:
    gone = [await done(local) for _ in range(3)]
    await local.store.write(local.oplog.seal_script())
    await write(local, f"DELETE FROM jobs {_OF_MESH} AND job_id = ?3", gone[0])
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(local, target)
    assert await delete_archived(local, target) > 20
    missing = [each.job_id for each in await Rebuild(local.store, local.oplog).check()]
    assert gone[0] in missing


async def test_ops_of_a_job_that_was_pruned_against_the_rules_stay(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    register_notes(owner)
    job_id = await done(owner)
    await owner.store.synced()
    payload = canonical({"at_ms": other.clock.now_ms, "jobs": [{"job_id": job_id}]})
    await other.store.write(Script(op=Op(PRUNE, payload)))
    await write(owner, f"DELETE FROM jobs {_OF_MESH} AND job_id = ?3", job_id)
    await other.store.write(other.oplog.seal_script())
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    await owner.store.synced()
    assert await delete_archived(owner, target) > 20
    await owner.store.synced()
    rebuild = Rebuild(owner.store, owner.oplog)
    assert [each.job_id for each in await rebuild.check()] == [job_id]
    assert [each.kind for each in rebuild.findings] == [PRUNE]


async def test_a_key_that_is_replaced_after_a_deletion_closes_the_whole_chain(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    for node in (owner, other):
        register_notes(node)
    for _ in range(4):
        for number in range(6):
            await other.oplog.append("note", {"n": number})
        await other.store.write(other.oplog.seal_script())
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    await owner.store.synced()
    await delete_archived(owner, target)
    await owner.store.synced()
    theirs = [each for each in await entries_of(owner) if each.node_id == "two"]
    assert after_gap(theirs)
    ends = await owner.roles._chain_ends("two")
    assert ends["two"].seq == theirs[-1].seq


async def test_a_job_policy_that_was_set_is_not_forgotten(local: MeshNode, tmp_path: Path) -> None:
    await keep_no_jobs(local)
    await local.store.write(local.oplog.seal_script())
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(local, target)
    await delete_archived(local, target)
    assert "SetRetention" in {each.kind for each in await entries_of(local)}


async def test_nothing_is_deleted_while_the_archive_lacks_a_file(tmp_path: Path) -> None:
    async with log_of_two_chains(tmp_path) as node:
        target = FolderTarget(tmp_path / "archive")
        await fill_archive(node, target)
        (lost,) = (tmp_path / "archive").iterdir()
        await delete_archived(node, target)
        await fill_archive(node, target)
        before, content = await entries_of(node), lost.read_bytes()
        lost.unlink()
        with pytest.raises(ArchiveFailed, match="does not have segment 1 as the log records it"):
            await delete_archived(node, target)
        assert await entries_of(node) == before
        lost.write_bytes(content)
        assert await delete_archived(node, target) > 20
