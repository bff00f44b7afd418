"""`vox-mesh top`: a live overview of the mesh in a terminal."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import json_option, show_lines, show_one
from vox_mesh.cli.support.session import run_on_mesh, start_shared
from vox_mesh.cli.top.headline import plain_lines
from vox_mesh.views.overview import overview

_STANDARD: Final = (0, 1, 2)
_DUMB: Final = ("", "dumb")


@click.command()
@click.option("--once", is_flag=True, help="Print the current state as text and exit.")
@click.option(
    "--interval",
    type=seconds,
    metavar="DURATION",
    help="Refresh interval; a server is read at most once a second.",
    show_default="after every change",
)
@json_option
def top(once: bool, interval: float | None, as_json: bool) -> int:
    """Show nodes, jobs, locks, messages and conflicts live.

    Press ? for the keys. It needs no running node, and resumes by itself when the database comes back.
    Without a terminal it prints the current state as text and exits.

    \b
    Example:
      vox-mesh top --interval 5s
    """
    settings = start_shared("top")
    if once or as_json or not _has_screen():
        seen = asyncio.run(run_on_mesh(settings, overview))
        if as_json:
            show_one(asdict(seen), as_json=True)
        else:
            show_lines(plain_lines(seen))
        return ExitCode.DONE
    from vox_mesh.cli.top.running import full_screen  # the drawing code is slow to import

    return asyncio.run(full_screen(settings, interval))


def _has_screen() -> bool:
    """Return whether there is a terminal to draw on; Textual draws on stderr."""
    return os.environ.get("TERM", "") not in _DUMB and all(map(os.isatty, _STANDARD))
