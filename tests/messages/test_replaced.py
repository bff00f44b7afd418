"""A node that is replaced while an answer is under way does not report that nothing was sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.nodes import virtual_time
from vox_mesh import Mesh
from vox_mesh.errors import NoAnswer, OutcomeUnknown, StaleIncarnation
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store import new_key
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.testing.harness import IsolatedSettings


class _Line(SharedMemory):
    """A node's way to the memory that all share. An answer can get lost, when something else has happened."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self.changes, self.keys, self.memories = shared.changes, shared.keys, shared.memories
        self.query_now = shared.query_now  # type: ignore[method-assign]
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def run(self, batch: Batch) -> BatchResult:
        result = self._shared.run_now(batch)
        if self.meanwhile is not None:
            happen, self.meanwhile = self.meanwhile, None
            await happen()
            raise NoAnswer("the answer got lost")
        return result


def test_a_message_whose_answer_got_lost_before_its_node_was_replaced_may_have_been_sent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        around = virtual_time.dependencies()
        assert isinstance(around.memory, SharedMemory)
        settings = IsolatedSettings(node_id="ada", agent_id="ada", home_dir=tmp_path, http=False)
        line = _Line(around.memory)
        async with AsyncExitStack() as lives:

            async def begin(memory: SharedMemory) -> Mesh:
                here = Dependencies(around.wall_ms, around.monotonic, memory=memory, place="here")
                return await lives.enter_async_context(Mesh.open(settings, here))

            old = await begin(line)
            await old.messages.send("bob", {})
            line.meanwhile = lambda: begin(around.memory)
            key = new_key()
            with pytest.raises(OutcomeUnknown) as unknown:
                await old.messages.send("bob", {}, key=key)
            assert "ada was started again" in str(unknown.value)
            assert await old.messages.queries.find(key) is not None
            with pytest.raises(StaleIncarnation):
                await old.messages.send("bob", {})

    virtual_time.run(scenario())


def test_a_node_that_was_replaced_claims_nothing_by_the_short_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        around = virtual_time.dependencies()
        settings = IsolatedSettings(node_id="ada", agent_id="ada", home_dir=tmp_path, http=False)
        async with AsyncExitStack() as lives:

            async def begin() -> Mesh:
                here = Dependencies(around.wall_ms, around.monotonic, memory=around.memory, place="here")
                return await lives.enter_async_context(Mesh.open(settings, here))

            old = await begin()
            sent = await old.messages.send("bob", {})
            name = old.messages.claims.new_name()
            new = await begin()
            assert await old.messages.claims.claim_one(sent.message_uuid, name, lease_s=60.0) == []
            with pytest.raises(StaleIncarnation):
                await old.messages.claims.claim(["bob"], name, lease_s=60.0)
            (held,) = await new.messages.claims.claim_one(sent.message_uuid, name, lease_s=60.0)
            assert held.delivery_attempts == 1

    virtual_time.run(scenario())
