"""Messages as tests see them: their rows, time that passes at once, and nodes that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.authoring import scene
from tools.homes import MEMORY, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Message, Script, Statement
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store import Value, new_key
from vox_mesh.store.schema.statements import named

PATIENCE_S: Final = 30.0
_LONG_AGO: Final = 1
_OF_MESH: Final = "WHERE scope_id = ?1 AND repository_id = ?2"


def bodies(messages: Iterable[Message]) -> list[Any]:
    """What the messages say."""
    return [message.body for message in messages]


def ids(messages: Iterable[Message]) -> list[str]:
    """Which messages these are."""
    return [message.message_uuid for message in messages]


async def write(mesh: Mesh, sql: str, *values: Value) -> None:
    """Run a statement directly; `?1` and `?2` are the mesh, then its own values."""
    await mesh.store.write(Script(Statement(sql, (*mesh.store.mesh_id, *values))))


async def change(mesh: Mesh, messages: Iterable[Message], **columns: Value) -> None:
    """Put other values into the rows of these messages."""
    names = ", ".join(f"{name} = ?{place}" for place, name in enumerate(columns, start=4))
    chosen = orjson.dumps(ids(messages)).decode()
    sql = f"UPDATE a2a_messages SET {names} {_OF_MESH} AND message_uuid IN (SELECT value FROM json_each(?3))"
    await write(mesh, sql, chosen, *columns.values())


async def lapse(mesh: Mesh, *messages: Message) -> None:
    """Have the leases of these messages be over."""
    await change(mesh, messages, claim_until_ms=_LONG_AGO)


async def come_due(mesh: Mesh) -> None:
    """Have the time come for all that was given back."""
    await write(mesh, f"UPDATE a2a_messages SET not_before_ms = 1 {_OF_MESH} AND not_before_ms IS NOT NULL")


async def database_ms(mesh: Mesh) -> int:
    """What the database's own clock shows, not what we make of it."""
    rows = await mesh.store.read(named("nodes")["now"], fresh=True)
    now_ms: int = rows.value
    return now_ms


async def row_of(mesh: Mesh, message: Message) -> dict[str, Any]:
    """All that the database has of a message."""
    sql = "SELECT * FROM a2a_messages WHERE scope_id = ? AND repository_id = ? AND message_uuid = ?"
    rows = await mesh.store.read(sql, (*mesh.store.mesh_id, message.message_uuid), fresh=True)
    row: dict[str, Any] = rows[0].as_dict()
    return row


async def found(mesh: Mesh, message: Message) -> Message:
    """The message in its current state; it must be there."""
    now = await mesh.messages.queries.find(message.message_uuid)
    assert now is not None, message
    return now


async def next_of(receiving: AsyncGenerator[Message, None]) -> Message:
    """The next message of a loop, which must come."""
    async with asyncio.timeout(PATIENCE_S):
        return await anext(receiving)


async def take(mesh: Mesh, receiving: AsyncGenerator[Message, None], count: int) -> list[Message]:
    """This many messages of a loop, each acknowledged before the next is asked for, and all in the end."""
    taken = []
    for _ in range(count):
        message = await next_of(receiving)
        await mesh.messages.ack(message)
        taken.append(message)
    await mesh.messages.wait_for_acks()
    return taken


async def settled(mesh: Mesh) -> None:
    """Wait until what is done in the background, such as giving back, is done."""
    async with asyncio.timeout(PATIENCE_S):
        while leaving := mesh.messages._background.running:
            await asyncio.wait(leaving)


class NodeGroup:
    """Nodes on one database, each with a key and a folder of its own; a node may begin again."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    def _opening(self, name: str, dependencies: Dependencies | None) -> AbstractAsyncContextManager[MeshNode]:
        raise NotImplementedError

    async def node(self, name: str, dependencies: Dependencies | None = None) -> MeshNode:
        """A new incarnation of a node."""
        opening = self._opening(name, dependencies)
        node = await self._stack.enter_async_context(opening)
        if node.incarnation is None:
            await node.run_once()
        return node


class _InMemory(NodeGroup):
    async def begin(self) -> None:
        self._scene = await self._stack.enter_async_context(scene())

    def _opening(self, name: str, dependencies: Dependencies | None) -> AbstractAsyncContextManager[MeshNode]:
        return self._scene.node(name, dependencies)


class _InTown(NodeGroup):
    def __init__(self, stack: AsyncExitStack, shared_mesh: SharedMesh) -> None:
        super().__init__(stack)
        self._town = shared_mesh

    def _opening(self, name: str, dependencies: Dependencies | None) -> AbstractAsyncContextManager[MeshNode]:
        return Mesh.open(self._town.settings(name, http=False), dependencies)


@asynccontextmanager
async def crowd_on(case: HomeCase, folder: Path, server: Server | None) -> AsyncIterator[NodeGroup]:
    """A crowd on a home, which ticks only when it is asked to and has no relay."""
    async with AsyncExitStack() as stack:
        if case is MEMORY:
            in_memory = _InMemory(stack)
            await in_memory.begin()
            yield in_memory
        else:
            yield _InTown(stack, SharedMesh(case, folder, server, new_key()))
