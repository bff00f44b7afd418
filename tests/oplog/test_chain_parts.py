"""Parts of chains: what is kept of a log that is read once shows who signed the wanted entries, and how."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.oplog.exports import log_of_two_chains
from vox_mesh.model.oplog.chain import SEAL, LogEntry
from vox_mesh.model.oplog.key_changes import ChainEnd
from vox_mesh.model.oplog.verification import Key
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.chain_parts import ChainParts


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node of its own."""
    async with log_of_two_chains(tmp_path) as node:
        yield node


@pytest.fixture
async def log(local: MeshNode) -> list[LogEntry]:
    """A log of several sealed parts."""
    for part in range(4):
        for number in range(3):
            await local.oplog.append("note", {"part": part, "n": number})
        await local.store.write(local.oplog.seal_script())
    return [entry async for page in local.oplog.entries(local.identity.chain) for entry in page]


def wanted_of(log: Sequence[LogEntry]) -> LogEntry:
    """An op in the middle of the log."""
    return next(each for each in log if each.payload == '{"n":1,"part":1}')


def read(node: MeshNode, log: Sequence[LogEntry], *ends: ChainEnd) -> ChainParts:
    """What is kept of the log for the sake of that op."""
    chain, op_id = node.identity.chain, wanted_of(log).op_id
    parts = ChainParts(node.store.writer_id.scope_id, {chain: ends} if ends else {})
    for entry in log:
        parts.add(entry, is_wanted=entry.op_id == op_id)
    return parts


async def keys_of(node: MeshNode) -> list[Key]:
    """The keys of the chain."""
    return await node.oplog.trusted_keys(node.identity.chain)


async def test_a_signed_and_sealed_entry_is_authentic(local: MeshNode, log: list[LogEntry]) -> None:
    parts, keys = read(local, log), await keys_of(local)
    assert parts.is_authentic(wanted_of(log), keys)
    assert not parts.has_changed_verdict(wanted_of(log), keys)
    stranger = [Key(local.identity.chain, 1, "ed25519:" + "3b" * 32)]
    assert not parts.is_authentic(wanted_of(log), stranger)


async def test_what_is_not_near_a_wanted_entry_is_not_kept(local: MeshNode, log: list[LogEntry]) -> None:
    parts, first = read(local, log), log[0]
    assert not parts.is_authentic(first, await keys_of(local))


@pytest.mark.parametrize("neighbour", [0, -1])
async def test_a_changed_verdict_is_found_also_near_the_entry(
    local: MeshNode, log: list[LogEntry], neighbour: int
) -> None:
    place = log.index(wanted_of(log)) + neighbour
    log[place] = log[place]._replace(accepted=0, reason="refused")
    parts = read(local, log)
    assert parts.is_authentic(wanted_of(log), await keys_of(local))
    assert parts.has_changed_verdict(wanted_of(log), await keys_of(local))


async def test_a_changed_seal_shows_nothing(local: MeshNode, log: list[LogEntry]) -> None:
    place = log.index(wanted_of(log))
    seal = next(n for n, each in enumerate(log) if n > place and each.kind == SEAL)
    log[seal] = log[seal]._replace(payload='{"from":1}')
    assert not read(local, log).has_changed_verdict(wanted_of(log), await keys_of(local))


async def test_a_changed_entry_is_not_authentic(local: MeshNode, log: list[LogEntry]) -> None:
    place = log.index(wanted_of(log))
    log[place] = log[place]._replace(kind="other")
    assert not read(local, log).is_authentic(wanted_of(log), await keys_of(local))


async def test_with_a_replaced_key_the_chain_must_lead_to_its_end(
    local: MeshNode, log: list[LogEntry]
) -> None:
    end = ChainEnd(log[-1].seq, log[-1].hash)
    keys, wanted = await keys_of(local), wanted_of(log)
    assert read(local, log, end).is_authentic(wanted, keys)
    assert read(local, log, ChainEnd(2, log[1].hash)).is_authentic(wanted, keys)  # it came after that end
    assert not read(local, log, ChainEnd(end.seq, "0" * 64)).is_authentic(wanted, keys)
    gap = [each for each in log if each.seq != end.seq - 2]
    assert not read(local, gap, end).is_authentic(wanted, keys)
