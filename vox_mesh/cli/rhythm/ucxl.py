"""`vox-mesh ucxl`: addresses with a time in beats."""

from __future__ import annotations

import asyncio

import click

from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import beside
from vox_mesh.cli.support.start import start
from vox_mesh.model.rhythm.ucxl import parse
from vox_mesh.views.rhythm import moment_of


@click.group(no_args_is_help=False)
def ucxl() -> None:
    """Addresses with a time: ucxl://… and ;beats=^^N, ;beats=~~N, ;phase=NAME."""


@ucxl.command()
@click.argument("address")
@json_option
def resolve(address: str, as_json: bool) -> None:
    """Tell when ADDRESS means, by the mesh's tempo and now: the time, its beat, its bar and its phase.

    ;beats=^^N is N beats from now, ;beats=~~N before. With ;phase=NAME it is the next moment of that phase
    from there on, or with ~~ the last before. ;bar=B#beat=N is deprecated, and counts bars from the first.

    \b
    Example:
      vox-mesh ucxl resolve 'ucxl://proj:any/*/task/ingest;beats=^^4;phase=work'
    """
    read = parse(address)
    show_one(vars(asyncio.run(beside(start(), lambda mesh: moment_of(mesh, read)))), as_json=as_json)
