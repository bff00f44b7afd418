"""Waiting for the ends of many jobs: a commit costs one question, however many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages.messaging import PATIENCE_S, write
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.errors import BadValue, NotKnown, StoreClosed
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.node import MeshNode
from vox_mesh.store import Rows, new_key
from vox_mesh.store.watch.changes import SomeChanges

_MANY = 100
_COMMITS = 20


class Reads:
    """The questions that a node asks, counted; and a wait for one that was asked after now."""

    def __init__(self, node: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._asked = asyncio.Event()
        read = node.store.read

        async def counting(*values: Any, **options: Any) -> Rows:
            rows = await read(*values, **options)
            self.count += 1
            self._asked.set()
            return rows

        monkeypatch.setattr(node.store, "read", counting)

    async def another(self) -> None:
        """Wait until another question is answered."""
        self._asked.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self._asked.wait()

    async def reach(self, count: int) -> None:
        """Wait until this many are answered."""
        while self.count < count:
            await self.another()


async def _questions_for(
    reads: Reads, waits: list[asyncio.Task[Any]], commit: Callable[[], Awaitable[object]]
) -> int:
    """Commit what ends nothing of it; how many questions are asked while this many wait."""
    await reads.reach(len(waits))
    before = reads.count
    for _ in range(_COMMITS):
        asked = asyncio.create_task(reads.another())
        await asyncio.sleep(0)
        await commit()
        await asked
    assert not any(wait.done() for wait in waits)
    return reads.count - before


async def test_a_commit_costs_one_question_however_many_wait_for_jobs(
    node: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await node.jobs.schedule("report", number) for number in range(_MANY)]
    reads = Reads(node, monkeypatch)
    waits = [asyncio.create_task(node.jobs.wait(job)) for job in jobs]
    asked = await _questions_for(reads, waits, lambda: node.messages.send("z", 1, sender="a"))
    assert asked < _MANY + 5 * _COMMITS
    await node.jobs.abort(jobs[7], reason="enough")
    async with asyncio.timeout(PATIENCE_S):
        assert (await waits[7]).state == JobState.ABORTED
    assert not any(wait.done() for wait in waits if wait is not waits[7])
    for wait in waits:
        wait.cancel()


async def test_a_job_that_is_gone_ends_the_wait_for_it(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await local.jobs.schedule("report", 1)
    reads = Reads(local, monkeypatch)
    waiting = asyncio.create_task(local.jobs.wait(job))
    await reads.another()
    await write(local, "DELETE FROM jobs WHERE scope_id = ?1 AND repository_id = ?2")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotKnown):
            await waiting


def listening(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set whenever the node begins to listen for commits."""
    begun, changed = asyncio.Event(), SomeChanges.changed

    async def telling(commits: SomeChanges, since: int) -> int:
        begun.set()
        return await changed(commits, since)

    monkeypatch.setattr(SomeChanges, "changed", telling)
    return begun


async def test_who_waits_for_a_job_when_the_mesh_is_left_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Mesh.open(FILE.settings(tmp_path, None, tick="1h")) as node:
        job = await node.jobs.schedule("report", 1)
        begun = listening(monkeypatch)
        waiting = asyncio.create_task(node.jobs.wait(job))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreClosed):
            await waiting


async def test_without_any_who_wait_nothing_listens(local: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await local.jobs.schedule("report", 1)
    begun = listening(monkeypatch)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            begun.clear()
            waiting = asyncio.create_task(local.jobs.wait(job))
            await begun.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert local.jobs._endings._task is not None
            await local.jobs._endings._task


async def test_too_many_predecessors_in_one_call_are_refused(node: MeshNode) -> None:
    ulids = [new_key() for _ in range(600)]
    after = [Manifest.of(kind="work", payload=place, after=ulids) for place in range(20)]
    with pytest.raises(BadValue, match="predecessors in one call must be at most 10000, got 12000"):
        await node.jobs.schedule_all(after)
