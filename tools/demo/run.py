"""The command line of the demo."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from tools.demo.claims import check_claims, gather
from tools.demo.demo_run import DemoRun
from tools.demo.processes import Failed
from tools.demo.summary import point_around, summarise
from tools.demo.view import view_of
from tools.demo.workspace import FOLDER, Workspace, forget_settings
from vox_mesh import Mesh, MeshError
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.files import make_private
from vox_mesh.store.schema.backup import back_up

_DEADLINE_S: Final = 90.0


async def run_demo(workspace: Workspace, console: Console, *, keeps_open: bool = False) -> bool:
    """Run the demo and print what can be proven of it; return whether all claims hold.

    `keeps_open`: its nodes stay until Ctrl-C, so that people can use the console.
    """
    began = time.monotonic()
    async with Mesh.open_command(workspace.settings()) as mesh:
        with view_of(console) as view:
            async with asyncio.timeout(_DEADLINE_S) as deadline:
                await DemoRun(workspace, mesh, view).run(deadline, keeps_open=keeps_open)
        claims = check_claims(await gather(mesh, workspace))
    if workspace.url is not None:
        await _keep_copy(workspace)
    is_proven = summarise(claims, console)
    seconds = time.monotonic() - began
    console.print(f"\n{seconds:.1f} s in all, start-up of the processes included.", highlight=False)
    point_around(workspace, console)
    return is_proven


async def check(workspace: Workspace, console: Console) -> bool:
    """Check the claims of the last run again, from its database and events."""
    async with Mesh.open_command(workspace.settings()) as mesh:
        return summarise(check_claims(await gather(mesh, workspace)), console)


async def _keep_copy(workspace: Workspace) -> None:
    """Copy the server's database: the server ends with the demo."""
    engine = await open_engine(workspace.settings())
    try:
        await back_up(engine, workspace.database)
    finally:
        await engine.close()


@contextmanager
def _workspace(*, has_server: bool, is_strict: bool) -> Iterator[Workspace]:
    """Yield an empty folder, and a server if one is wanted."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_private(FOLDER)
    if not has_server:
        yield Workspace(FOLDER, is_strict=is_strict)
        return
    from tools.sqld import Server  # installed on first use

    with Server() as server:
        yield Workspace(FOLDER, server.url, server.token, is_strict=is_strict)


def main() -> int | str:
    """Run the demo; return 0 if all claims hold. Exit with a message if it could not run."""
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
    parser.add_argument("--strict", action="store_true", help="on a strict mesh: agents act by grants only")
    parser.add_argument("--keep", action="store_true", help="keep the console open at the end, until Ctrl-C")
    parser.add_argument("--check", action="store_true", help="only say again what the last run has proven")
    options = parser.parse_args()
    forget_settings()
    console = Console()
    if options.check:
        return 0 if asyncio.run(check(Workspace(FOLDER), console)) else 1
    with _workspace(has_server=options.server is not None, is_strict=options.strict) as workspace:
        return 0 if asyncio.run(run_demo(workspace, console, keeps_open=options.keep)) else 1
