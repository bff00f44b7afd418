"""What plain code drops without closing it: iterators, and a whole mesh."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from vox_mesh.sync.blocking import Block
from vox_mesh.sync.loop_thread import Iteration, LoopThread

_PATIENCE_S: Final = 30.0


def test_what_follows_a_dropped_iterator_sees_it_closed() -> None:
    said: list[str] = []

    async def items() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            said.append("closed")

    @asynccontextmanager
    async def block() -> AsyncGenerator[None, None]:
        yield
        said.append("left")

    with LoopThread() as loop:
        for _ in Iteration(loop, items(), None, lambda item: item):
            break
        assert loop.run(lambda: asyncio.sleep(0, list(said)), None) == ["closed"]
        with Block(loop, block()):
            for _ in Iteration(loop, items(), None, lambda item: item):
                break
        assert said == ["closed", "closed", "left"]


def test_what_fails_to_close_when_it_is_dropped_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def items() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise LookupError("no end")

    with LoopThread() as loop:
        for _ in Iteration(loop, items(), None, lambda item: item):
            break
        assert loop.run(lambda: asyncio.sleep(0, 1), None) == 1
    assert "async_generator not closed" in caplog.text
    assert "no end" in caplog.text


def test_a_script_that_does_not_close_its_mesh_exits() -> None:
    script = """
        from vox_mesh import load_settings
        from vox_mesh.sync import Mesh

        manager = Mesh.open(load_settings(_env_file=None))
        mesh = manager.__enter__()
        mesh.messages.send("bob", "hi", sender="ada")
        messages = mesh.messages.receive("bob")
        print(next(messages).body)
        """
    command = (sys.executable, "-c", textwrap.dedent(script))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "hi\n", "")
