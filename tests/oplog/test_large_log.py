"""A log that no server would answer with at once is still read, verified and exported."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.messages.messaging import PATIENCE_S
from tools.homes import MEMORY, MESH
from tools.sqld import Server
from vox_mesh.errors import Unreachable
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.rows import Rows, Value

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


class _NotedPages(Pages):
    """Pages of two entries. They say when each read begins, and fail at one of them."""

    def __init__(self, node: MeshNode, fails_at: int = 0) -> None:
        super().__init__(node.store)
        self._page_limit = 2
        self._fails_at = fails_at
        self._numbers = count(1)
        self.begun = asyncio.Queue[int]()

    async def _rows(self, name: str, *values: Value, limit: int, fresh: bool = False) -> Rows:
        number = next(self._numbers)
        self.begun.put_nowait(number)
        if number == self._fails_at:
            raise Unreachable("it is away")
        return await super()._rows(name, *values, limit=limit, fresh=fresh)


async def test_the_next_page_is_read_while_one_is_used(local: MeshNode) -> None:
    local.oplog.register(OpKind("turn"))
    for number in range(6):
        await local.oplog.append("turn", {"n": number})
    pages = _NotedPages(local)
    reading = pages.entries()
    assert [each.seq for each in await anext(reading)] == [1, 2]
    async with asyncio.timeout(PATIENCE_S):
        assert [await pages.begun.get() for _ in range(2)] == [1, 2]
    assert [each.seq async for page in reading for each in page] == [*range(3, 8)]
    assert pages.begun.qsize() == 3, "the last one finds nothing"


async def test_a_page_that_cannot_be_read_fails_its_own_step(local: MeshNode) -> None:
    local.oplog.register(OpKind("turn"))
    for number in range(6):
        await local.oplog.append("turn", {"n": number})
    reading = _NotedPages(local, fails_at=2).entries()
    assert len(await anext(reading)) == 2
    with pytest.raises(Unreachable):
        await anext(reading)


async def test_a_page_that_is_not_needed_may_fail(local: MeshNode) -> None:
    local.oplog.register(OpKind("turn"))
    for number in range(6):
        await local.oplog.append("turn", {"n": number})
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    pages = _NotedPages(local, fails_at=2)
    reading = pages.entries()
    assert len(await anext(reading)) == 2
    async with asyncio.timeout(PATIENCE_S):
        while await pages.begun.get() < 2:
            pass
    await reading.aclose()
    await asyncio.sleep(0)
    del reading
    gc.collect()
    assert heard == []
