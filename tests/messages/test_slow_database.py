"""A database that answers late is not away: nothing is handed out without a claim, or without a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.messages.messaging import PATIENCE_S, bodies, next_of, row_of, settled
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Message
from vox_mesh.messages import consumer
from vox_mesh.messages.claims import Claims
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_ATTEMPTS: Final = 3


class Attempts:
    """Counts how often a node's consumers have tried to claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: MeshNode) -> None:
        self._made = asyncio.Semaphore(0)
        claims = node.messages.claims

        async def counted(*given: object, **named: object) -> list[Message]:
            self._made.release()
            return await Claims.claim(claims, *given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(claims, "claim", counted)

    async def until(self, count: int, receiving: asyncio.Task[Message]) -> None:
        """Wait until this many more were made, which must come to nothing."""
        made = asyncio.create_task(self._several(count))
        await asyncio.wait({made, receiving}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert not receiving.done(), f"it was handed out without a claim: {receiving.result()}"
        await made

    async def _several(self, count: int) -> None:
        for _ in range(count):
            await self._made.acquire()


class Slow:
    """A node behind a proxy that can hold the database's answers back, and one that is not."""

    def __init__(self, slow: MeshNode, other: MeshNode, proxy: Proxy) -> None:
        self.slow = slow
        self.other = other
        self.proxy = proxy


@pytest.fixture
async def nodes(
    tmp_path: Path, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Slow]:
    """Both nodes, of which the slow one soon loses its patience."""
    monkeypatch.setattr(consumer, "_CLAIM_TIMEOUT_S", 0.02)
    shared_mesh = SharedMesh(MESH_REPLICA, tmp_path, shared_server, new_key())
    async with Proxy(shared_server.port) as proxy:
        settings = shared_mesh.settings("slow", http=False).model_copy(update={"db_url": proxy.url})
        async with (
            Mesh.open(settings) as slow,
            Mesh.open(shared_mesh.settings("other", http=False)) as other,
        ):
            yield Slow(slow, other, proxy)
            proxy.release()


async def test_a_message_acked_elsewhere_is_not_handed_out_when_the_answer_is_late(
    nodes: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = nodes.slow.messages, nodes.other.messages
    loop = slow.receive("z")
    waiting = asyncio.create_task(next_of(loop))
    sent = await other.send("z", "first", sender="a")
    await slow.ack(await waiting)  # so that it knows the sender, and has nothing else to ask for
    waiting = asyncio.create_task(next_of(loop))
    await settled(nodes.slow)
    attempts = Attempts(monkeypatch, nodes.slow)
    nodes.proxy.spoil(Fault.HOLD_ANSWER, times=1_000)
    sent = await other.send("z", "second", sender="b")
    (claimed,) = await other.poll_inbox_from_db("z")
    await other.ack(claimed)
    slow.relay_buffer.add([sent])
    await attempts.until(_ATTEMPTS, waiting)
    nodes.proxy.release()
    await other.send("z", "third", sender="b")
    assert bodies([await waiting]) == ["third"]
    assert (await row_of(nodes.other, sent))["claim_owner"] == claimed.claim_owner
    await loop.aclose()
