"""Incremental verification: from a checkpoint on it finds what the full one finds, reading the rest only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.oplog.exports import log_of_two_chains
from tests.support.oplog.tampering import Intruder, stranger
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.model.oplog.chain import SEAL
from vox_mesh.model.oplog.checkpoint import LogCheckpoint
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.node import MeshNode
from vox_mesh.oplog.audits.verified_log import VerifiedLog


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node whose log has two chains."""
    async with log_of_two_chains(tmp_path) as node:
        yield node


async def verified(node: MeshNode) -> LogCheckpoint:
    """A checkpoint at the present end of the log, as it comes back from a file."""
    await node.oplog.verify()
    assert node.oplog.checkpoint is not None
    read = LogCheckpoint.decode(node.oplog.checkpoint.encode(node.identity.key), node.identity.key.public)
    assert read == node.oplog.checkpoint
    return read


async def go_on(node: MeshNode, tmp_path: Path, notes: int = 3) -> None:
    """Add entries to both chains, with seals and anchors among them."""
    for number in range(notes):
        await node.oplog.append("note", {"later": number})
    await node.store.write(node.oplog.seal_script())
    settings = FILE.settings(tmp_path, None).model_copy(update={"scope_id": node.store.mesh_id[0]})
    async with Mesh.open_command(settings) as command:
        await command.oplog.anchor()
    await node.oplog.append("note", {"unsealed": True})


def sort(reports: list[ChainReport]) -> list[ChainReport]:
    """The reports in an order of their own."""
    return sorted(reports)


async def test_it_reports_what_the_full_verification_reports(node: MeshNode, tmp_path: Path) -> None:
    since = await verified(node)
    for _ in range(3):
        await go_on(node, tmp_path)
        reports = await node.oplog.verify(since=since)
        following = node.oplog.checkpoint
        assert sort(reports) == sort(await node.oplog.verify())
        assert following == node.oplog.checkpoint
        assert following is not None
        since = following


async def test_only_entries_after_the_last_verified_seals_are_read(node: MeshNode, tmp_path: Path) -> None:
    await go_on(node, tmp_path, notes=40)
    since = await verified(node)
    seals = {chain: known.seal for chain, known in since.chains.items()}
    assert {each.kind for each in seals.values()} == {SEAL}
    await go_on(node, tmp_path)
    pages = VerifiedLog(node.store, node.trusted_keys).entries(since, await node.oplog.last_id())
    read = [entry async for page in pages for entry in page]
    assert read
    assert all(entry.seq > seals[entry.node_id].seq for entry in read)
    assert len(read) < 15


async def test_a_change_after_the_checkpoint_is_found_there(node: MeshNode, tmp_path: Path) -> None:
    since = await verified(node)
    await go_on(node, tmp_path)
    intruder, chain = Intruder(node.store), node.identity.chain
    first = since.chains[chain].seal.seq + 1
    await intruder.set(chain, first, reason="another")
    reports = await node.oplog.verify(since=since)
    assert sort(reports) == sort(await node.oplog.verify())
    assert any(each.problem for each in reports)
    assert node.oplog.checkpoint is None


async def test_an_end_that_was_cut_off_since_is_found(node: MeshNode, tmp_path: Path) -> None:
    since = await verified(node)
    await go_on(node, tmp_path)
    later = await verified(node)
    chain = node.identity.chain
    last = (await Intruder(node.store).entries(chain))[-1]
    await Intruder(node.store).delete(chain, since.chains[chain].seal.seq + 1, last.seq)
    for begun in (since, later):
        reports = await node.oplog.verify(since=begun)
        assert any(each.problem and each.node_id == chain for each in reports)


async def test_a_checkpoint_that_the_log_does_not_fit_is_not_used(node: MeshNode, tmp_path: Path) -> None:
    since = await verified(node)
    await go_on(node, tmp_path)
    chain = node.identity.chain
    log = VerifiedLog(node.store, node.trusted_keys)
    assert await log.fits(since)
    await Intruder(node.store).set(chain, since.chains[chain].seal.seq, reason="another")
    assert not await log.fits(since)
    reports = await node.oplog.verify(since=since)
    assert sort(reports) == sort(await node.oplog.verify())
    assert any(each.problem for each in reports)


async def test_a_checkpoint_of_another_key_is_not_believed(node: MeshNode) -> None:
    since = await verified(node)
    assert LogCheckpoint.decode(since.encode(stranger()), node.identity.key.public) is None
    assert LogCheckpoint.decode(b"{}", node.identity.key.public) is None
    assert LogCheckpoint.decode(b"\x00", node.identity.key.public) is None
