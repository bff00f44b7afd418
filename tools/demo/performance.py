"""The demo from its command line to its end."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from tools.demo.claims import examined, gather
from tools.demo.players import Failed
from tools.demo.stage import FOLDER, Stage, forget_settings
from tools.demo.story import Story
from tools.demo.summary import point_around, summarise
from tools.demo.view import view_of
from vox_mesh import Mesh, MeshError
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.schema.backup import back_up

_DEADLINE_S: Final = 90.0


async def play(stage: Stage, console: Console) -> bool:
    """Run it, and say what can be proven of it; whether that is all."""
    began = time.monotonic()
    async with Mesh.open_command(stage.settings()) as mesh:
        with view_of(console) as view:
            async with asyncio.timeout(_DEADLINE_S):
                await Story(stage, mesh, view).run()
        claims = examined(await gather(mesh, stage))
    if stage.url is not None:
        await _keep_copy(stage)
    is_proven = summarise(claims, console)
    seconds = time.monotonic() - began
    console.print(f"\n{seconds:.1f} s in all, start-up of the processes included.", highlight=False)
    point_around(stage, console)
    return is_proven


async def check(stage: Stage, console: Console) -> bool:
    """Say again what can be proven of the last run, from what is there now."""
    async with Mesh.open_command(stage.settings()) as mesh:
        return summarise(examined(await gather(mesh, stage)), console)


async def _keep_copy(stage: Stage) -> None:
    """The server ends with the demo."""
    engine = await open_engine(stage.settings())
    try:
        await back_up(engine, stage.database)
    finally:
        await engine.close()


@contextmanager
def _stage(has_server: bool) -> Iterator[Stage]:
    """An empty folder, and a server if there is to be one."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if not has_server:
        yield Stage(FOLDER)
        return
    from tools.sqld import Server  # installs itself where it is not there yet

    with Server() as server:
        yield Stage(FOLDER, server.url, server.token)


def main() -> int | str:
    """Run the demo; 0 if all that it claims is true, a line if it could not be run."""
    try:
        return _run()
    except MeshError as error:
        return f"demo: {error.line}"
    except Failed as error:
        return f"demo: {error}"
    except FileNotFoundError as error:
        return f"demo: {error.filename} is missing: run the demo first"
    except TimeoutError:
        return f"demo: it is not done after {_DEADLINE_S:g} s"


def _run() -> int:
    parser = argparse.ArgumentParser(prog="demo", description="three orchestrators do sixty jobs together")
    parser.add_argument("--server", choices=["sqld"], help="on a real server with replicas, not on a file")
    parser.add_argument("--check", action="store_true", help="only say again what the last run has proven")
    options = parser.parse_args()
    forget_settings()
    console = Console()
    if options.check:
        return 0 if asyncio.run(check(Stage(FOLDER), console)) else 1
    with _stage(options.server is not None) as stage:
        return 0 if asyncio.run(play(stage, console)) else 1
