"""The log of refusals: counted, bounded, written in the background, and kept until it is written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pytest

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.http.principals import refusals
from vox_mesh.http.principals.refusals import RefusalLog
from vox_mesh.oplog.refusals import RefusedAccess

LOCKS: Final = RefusedAccess("POST /v1/locks", "not_granted")


class Scene:
    """A log of refusals whose pauses end when a test says so."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[RefusedAccess, int]]] = []
        self.is_away = False
        self._pauses: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.log = RefusalLog(self._record, self._sleep)

    async def _record(self, agent: str, counts: Mapping[RefusedAccess, int]) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.written.append((agent, dict(counts)))

    async def _sleep(self, _: float) -> None:
        over = asyncio.Event()
        self._pauses.put_nowait(over)
        await over.wait()

    async def pass_time(self) -> None:
        """End the present pause, and wait for the next one or the end."""
        (await self._pauses.get()).set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_many_refusals_are_one_entry() -> None:
    scene = Scene()
    for _ in range(30):
        scene.log.note("eve", *LOCKS)
    scene.log.note("ben", *LOCKS)
    assert scene.written == []
    await scene.pass_time()
    assert scene.written == [("eve", {LOCKS: 30}), ("ben", {LOCKS: 1})]
    scene.log.note("eve", *LOCKS)
    assert len(scene.written) == 2, "not before the interval has passed"
    await scene.pass_time()
    assert scene.written[2:] == [("eve", {LOCKS: 1})]
    await scene.log.close()


async def test_what_could_not_be_written_is_written_later() -> None:
    scene = Scene()
    scene.is_away = True
    scene.log.note("eve", *LOCKS)
    await scene.pass_time()
    scene.is_away = False
    scene.log.note("eve", *LOCKS)
    await scene.log.close()
    assert scene.written == [("eve", {LOCKS: 2})]


async def test_the_memory_of_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_MAX_AGENTS", 2)
    monkeypatch.setattr(refusals, "_MAX_SORTS", 2)
    scene = Scene()
    for agent in ("ann", "ben", "cid"):
        for number in range(4):
            scene.log.note(agent, f"GET /v1/{number}", "not_granted")
    await scene.log.close()
    assert [(agent, Counter(counts).total(), len(counts)) for agent, counts in scene.written] == [
        ("ann", 4, 3),
        ("ben", 4, 3),
    ]
