"""The thread next to the loop: one thing after another, and a head start where both have much to do."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vox_mesh.store.engines.thread import HeadStart, SerialThread

_LONG_S = 30.0


async def test_the_loop_stands_still_until_the_thread_is_off() -> None:
    thread, start, reported = SerialThread("test"), HeadStart(), list[str]()

    def work() -> None:
        reported.append("the thread has come to its long part")
        start.release()

    doing = thread.do(work)
    assert start.wait(_LONG_S)
    assert reported == ["the thread has come to its long part"]
    await doing
    assert await thread.stop()


async def test_the_loop_stands_still_no_longer_than_it_was_said() -> None:
    thread, start, end = SerialThread("test"), HeadStart(), threading.Event()

    def work() -> None:
        end.wait(_LONG_S)
        start.release()

    doing = thread.do(work)
    assert not start.wait(0.001)
    end.set()
    await doing
    assert start.wait(0.0), "that it came late is no fault"
    assert await thread.stop()


def test_a_thread_may_say_again_that_it_is_off() -> None:
    start = HeadStart()
    start.release()
    start.release()
    assert start.wait(_LONG_S)
    start.release()
    start.release()


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
