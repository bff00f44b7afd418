"""Small programs in processes of their own: they say one line when they are ready, and wait."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.fork_server import Program
from tools.forked import Process
from tools.homes import environment
from vox_mesh import Settings

_ROOT: Final = Path(__file__).resolve().parents[3]
_PATIENCE_S: Final = 60.0

NODE: Final = """
import asyncio, sys
from vox_mesh import load_settings, open_store

async def main():
    async with await open_store(load_settings()) as store:
        await store.synced()
        print("in touch", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
"""For `program`: a node that says when its replica is in touch."""


NOTING_NODE: Final = """
import asyncio, sys
from vox_mesh import Mesh, OpKind, load_settings

async def main():
    async with Mesh.open(load_settings()) as mesh:
        mesh.oplog.register(OpKind("note"))
        mesh.presence.activity.text = "taking notes"
        await mesh.run_once()
        print(mesh.identity.node_id, flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            text, _, dependency = line.partition(" after ")
            op = await mesh.oplog.append("note", {"text": text}, deps=[dependency] if dependency else [])
            print(op.key, flush=True)

asyncio.run(main())
"""
"""A node that says its id, and logs an op for every line it is given: `text`, or `text after <op id>`."""


@contextmanager
def program(code: str, *arguments: object, settings: Settings | None = None) -> Iterator[tuple[str, Process]]:
    """Run the code until its first line of output; that line, and the process.

    The code should end when its stdin does; what has not ended by then is killed.
    """
    chosen = {} if settings is None else environment(settings)
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), **chosen}
    given = tuple(str(argument) for argument in arguments)
    with Process(Program(given, variables, code=code), has_stdin=True) as process:
        assert process.stdin is not None
        try:
            line = process.stdout.readline().strip()
            if not line:
                print(process.stderr.read())  # why, if that was not wanted
            yield line, process
            process.stdin.close()
            process.wait(_PATIENCE_S)
        finally:
            process.kill()
