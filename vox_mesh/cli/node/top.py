"""`vox-mesh top`: the mesh at a glance, live in a terminal."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import json_option, show_lines, show_one
from vox_mesh.cli.support.start import start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings
from vox_mesh.top.plain import plain_lines
from vox_mesh.views.overview import Overview, overview

_STANDARD: Final = (0, 1, 2)
_DUMB: Final = ("", "dumb")


@click.command()
@click.option("--once", is_flag=True, help="Print one look as text, and end.")
@click.option(
    "--interval",
    type=seconds,
    metavar="DURATION",
    help="Look so often, instead of with every change; a server is asked once a second at the most.",
)
@json_option
def top(once: bool, interval: float | None, as_json: bool) -> int:
    """Show nodes, jobs, locks, messages and conflicts, live, with keys for what is done most.

    Press ? for the keys. It runs beside the nodes or without any, and goes on by itself after the database
    was away. Without a terminal it prints one look as text, and ends.

    \b
    Example:
      vox-mesh top --interval 5s
    """
    settings = start_shared("top")
    if once or as_json or not _has_screen():
        seen = asyncio.run(_seen(settings))
        if as_json:
            show_one(asdict(seen), as_json=True)
        else:
            show_lines(plain_lines(seen))
        return ExitCode.DONE
    from vox_mesh.top.running import full_screen  # with all that draws, which takes its time to load

    return asyncio.run(full_screen(settings, interval))


def _has_screen() -> bool:
    """Whether there is a terminal that can be drawn on; it is drawn on by stderr."""
    return os.environ.get("TERM", "") not in _DUMB and all(map(os.isatty, _STANDARD))


async def _seen(settings: Settings) -> Overview:
    async with Mesh.open_command(settings) as mesh:
        return await overview(mesh)
