"""The thread next to the loop: one thing after another."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vox_mesh.store.engines.thread import SerialThread


async def test_what_was_cancelled_before_its_turn_is_not_done() -> None:
    thread, end, done = SerialThread("test"), threading.Event(), list[str]()
    first, second = thread.do(end.wait), thread.do(lambda: done.append("second"))
    third = thread.do(lambda: done.append("third"))
    second.cancel()
    end.set()
    await first
    await third
    with pytest.raises(asyncio.CancelledError):
        await second
    assert done == ["third"]
    assert await thread.stop()
