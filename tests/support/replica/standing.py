"""How a node's replica stands, as tests see it, and waiting until it stands otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vox_mesh import Settings, Store
from vox_mesh.store.replica.paths import replica_path
from vox_mesh.store.replica.replica import ReplicaState, ReplicaStatus

_PATIENCE_S: Final = 30.0


def replica_file(settings: Settings) -> Path:
    """Where the replica of the first node in a folder lies."""
    return replica_path(settings.db_path, "1")


def standing(store: Store) -> ReplicaStatus:
    """How the replica stands, without asking the database for anything."""
    assert store._replica is not None
    return store._replica.status()


async def until(store: Store, condition: Callable[[], bool], timeout: float = _PATIENCE_S) -> None:
    """Wait for what only a commit, or a change of the replica's state, can make true."""
    async with asyncio.timeout(timeout):
        while True:
            seen = store.change_count
            if condition():
                return
            await store.changed(seen)


async def until_in_touch(store: Store) -> None:
    """Wait until commits come in by themselves."""
    await until(store, lambda: standing(store).state is ReplicaState.IN_TOUCH)
