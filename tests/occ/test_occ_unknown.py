"""Answers that got lost: no one knows what became of a write, and sent again it takes effect once."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import pytest

from tests.support.oplog.authoring import RestartableNodes, scene
from tests.support.oplog.rivals import MEMORIES, at, memory, overtaken, row
from vox_mesh import ConflictRecorded, Manual, Merge, Merged, TakeLeft, Written
from vox_mesh.errors import NoAnswer, OutcomeUnknown
from vox_mesh.node import MeshNode

_SOON_S: Final = 0.1


class _Losing:
    """The answers to all requests after some get lost, until the deadline."""

    def __init__(self, there: RestartableNodes, node: MeshNode) -> None:
        self._there = there
        self._node = node

    def after(self, requests: int) -> None:
        """Let this many requests be answered, and none after them."""
        self._node.store._timeout = _SOON_S
        run, left = self._there.gate.run, requests

        async def run_and_lose(batch: Any) -> Any:
            nonlocal left
            result = await run(batch)
            left -= 1
            if left < 0:
                raise NoAnswer("lost")
            return result

        self._there.gate.run = run_and_lose  # type: ignore[method-assign]

    def stop(self) -> None:
        """Let all answers come again."""
        del self._there.gate.run  # the one that was put over it


@pytest.mark.parametrize("requests", [0, 1])
async def test_an_update_whose_answer_got_lost_counts_once(requests: int) -> None:
    async with scene() as there, there.node() as node:
        await memory(node, "a", importance=1)
        losing = _Losing(there, node)
        rivals = deque([True] * requests)

        def more(now: dict[str, Any] | None) -> dict[str, Any]:
            assert now is not None
            return {"importance": now["importance"] + 1}

        read = node.occ._versions.read

        async def read_and_move(address: Any) -> Any:
            seen = await read(address)
            if rivals:
                rivals.popleft()
                await node.occ.write(MEMORIES, at("a"), {"importance": 10}, seen)
                losing.after(requests)
            return seen

        node.occ._versions.read = read_and_move  # type: ignore[method-assign]
        if not requests:
            losing.after(0)
        with pytest.raises(OutcomeUnknown) as unknown:
            await node.occ.update(MEMORIES, at("a"), more)
        losing.stop()
        once = (await row(node, "a"))["importance"]
        assert once == (11 if requests else 2)
        for _ in range(2):
            done = await node.occ.update(MEMORIES, at("a"), more, script_key=unknown.value.key)
            assert isinstance(done, Written)
            now = await row(node, "a")
            assert (now["importance"], now["written_at"]) == (once, done.written_at)


@pytest.mark.parametrize("strategy", [TakeLeft(), Merge(), Manual()], ids=str)
@pytest.mark.parametrize("requests", [0, 1])
async def test_a_write_whose_answer_got_lost_takes_effect_once(strategy: Any, requests: int) -> None:
    async with scene() as there, there.node() as node:
        base, _ = await overtaken(node, "a", tags="right")
        losing = _Losing(there, node)
        losing.after(requests)

        async def write(script_key: str | None = None) -> Any:
            values = {"content": "left"}
            return await node.occ.write(
                MEMORIES, at("a"), values, base, strategy=strategy, script_key=script_key
            )

        with pytest.raises(OutcomeUnknown) as unknown:
            await write()
        losing.stop()
        results = [await write(unknown.value.key) for _ in range(2)]
        now = await row(node, "a")
        for result in results:
            match strategy:
                case TakeLeft():
                    assert isinstance(result, Written)
                    assert (result.written_at, now["content"]) == (now["written_at"], "left")
                case Merge():
                    assert isinstance(result, Merged)
                    assert (result.row, now["content"], now["tags"]) == (now, "left", "right")
                case _:
                    assert isinstance(result, ConflictRecorded)
                    (conflict,) = await node.conflicts.list()
                    assert conflict.conflict_id == result.conflict_id
