"""Tokens: those of a key only ever rise, whatever becomes of its holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.locks.holding import expire, expire_all, nodes
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh import Mesh, Settings
from vox_mesh.errors import NoAnswer
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode
from vox_mesh.runtime.restore import BackupFile, restore
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.backup import back_up


async def test_the_token_of_a_key_rises_through_release_expiry_sweep_break_and_restart(
    settings: Settings,
) -> None:
    ways = ("task:1", ["task:1", "task:2"], ["task:1"])
    tokens: list[int] = []
    async with Mesh.open(settings) as mesh:

        async def taken(turn: int) -> Lock:
            lock = await mesh.locks.acquire(ways[turn % 3], shared=turn % 3 == 2)
            tokens.append(lock.fence_token)
            return lock

        for turn in range(6):
            await mesh.locks.release(await taken(turn))
            await expire(mesh, await taken(turn))
            await mesh.locks.sweep_expired_distributed_locks()
            await expire(mesh, await taken(turn))
            await taken(turn)
            await mesh.locks.break_lock("task:1", "a test")
            await expire_all(mesh)  # of several keys, the other one
        if settings.enabled:
            await mesh.locks.sweep_expired_distributed_locks()
    if settings.enabled:  # in memory, nothing is left after the end
        async with Mesh.open(settings) as mesh:
            await taken(0)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("sweeps", [False, True])
async def test_tokens_rise_from_a_path_to_a_pattern_over_it_and_back(mesh: MeshNode, sweeps: bool) -> None:
    tokens: list[int] = []
    for keys in ("file:a/b", "file:a/b", "file:a/b", "file:a/*", "file:a/b", ["file:a/b", "x"], "file:**"):
        lock = await mesh.locks.acquire(keys)
        tokens.append(lock.fence_token)
        await mesh.locks.release(lock)
        if sweeps:
            await mesh.locks.sweep_expired_distributed_locks()
    assert tokens == sorted(set(tokens)), (
        "the one that guards file:a/b by the highest token would let an old one in"
    )


async def test_tokens_rise_between_nodes(common_settings: Settings) -> None:
    async with nodes(common_settings, 2) as both:
        tokens: list[int] = []
        for turn in range(12):
            mesh = both[turn % 2]
            lock = await mesh.locks.acquire("task:1" if turn % 3 else ["task:1", "task:2"])
            tokens.append(lock.fence_token)
            await mesh.locks.release(lock)
        assert tokens == sorted(set(tokens))


async def test_tokens_given_out_after_a_backup_are_not_given_out_again_after_its_restore(
    tmp_path: Path, there: RestartableNodes
) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("task:1")
        await mesh.locks.release(await mesh.locks.acquire("task:2"))
        await back_up(there.gate, tmp_path / "backup.db")
        await mesh.locks.release(lock)
        for _ in range(3):  # unknown to the backup
            lock = await mesh.locks.acquire("task:1")
            await mesh.locks.release(lock)
    engine = MemoryEngine()
    with BackupFile(tmp_path / "backup.db") as backup:
        await restore(engine, backup, timeout=10.0)
    async with scene(engine) as later, later.node("z") as mesh:
        await expire_all(mesh)
        for keys in ("task:1", ["task:1"], ["task:1", "task:9"], "task:2"):
            again = await mesh.locks.acquire(keys)
            assert again.fence_token >= 2**32, keys
            assert again.fence_token > lock.fence_token
            await mesh.locks.release(again)


async def test_a_token_is_not_given_out_twice_when_its_answer_was_lost(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        tokens: list[int] = []
        for keys in ("task:1", ["task:1", "task:2"]) * 3:
            there.gate.after.append(NoAnswer("lost"))
            lock = await mesh.locks.acquire(keys)
            tokens.append(lock.fence_token)
            await mesh.locks.release(lock)
        assert tokens == sorted(set(tokens))
