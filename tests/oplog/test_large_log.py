"""A log that no server would answer with at once is still read, verified and exported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tools.homes import MEMORY, MESH
from tools.sqld import Server
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.oplog.op_kinds import OpKind

_COUNT = 120
_MANY = 1_000
_BYTES = 120_000  # together more than the server's limit of 10 MB


async def test_entries_that_are_too_large_for_one_answer_come_in_several(
    shared_server: Server, tmp_path: Path
) -> None:
    async with Mesh.open(MESH.settings(tmp_path, shared_server)) as mesh:
        mesh.oplog.register(OpKind("large"))
        for number in range(_COUNT):
            await mesh.oplog.append("large", {"n": number, "text": "x" * _BYTES})
        (chain,) = await mesh.oplog.verify()
        assert (chain.problem, chain.entries) == (None, _COUNT + 1)
        assert len(await mesh.oplog.tail(_COUNT, kind="large")) == _COUNT
        assert len(await mesh.oplog.tail(_COUNT, node_id=mesh.identity.chain)) == _COUNT
        followed = []
        async for entry in mesh.oplog.follow(0):
            followed.append(entry.seq)
            if len(followed) == _COUNT + 1:
                break
        assert followed == [*range(1, _COUNT + 2)]
        exported = await export_log(mesh.oplog, *mesh.store.mesh_id, tmp_path / "log.jsonl")
        assert exported.entries == _COUNT + 1
    assert [chain.problem for chain in verify_export(tmp_path / "log.jsonl").chains] == [None]


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node in memory, where nothing is waited for."""
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as node:
        yield node


async def test_while_a_log_is_verified_others_have_their_turns(local: MeshNode) -> None:
    local.oplog.register(OpKind("turn"))
    await asyncio.gather(*(local.oplog.append("turn", {"n": number}) for number in range(_MANY)))
    turns, verified = 0, asyncio.Event()

    async def take_turns() -> None:
        nonlocal turns
        while not verified.is_set():
            turns += 1
            await asyncio.sleep(0)

    taking = asyncio.create_task(take_turns())
    await asyncio.sleep(0)
    (chain,) = await local.oplog.verify()
    verified.set()
    await taking
    assert (chain.problem, chain.entries >= _MANY) == (None, True)
    assert turns > _MANY / 64, "no piece is longer than 64 entries"
