"""Which mesh a command uses, where its settings came from, and the other meshes of the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.support.output import printable
from vox_mesh.settings.discovery import repository_homes

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

SECOND_MESH: Final = "second mesh in this repository"
SECOND_MESH_ADVICE: Final = (
    "agents that use it share nothing with this one: move it away, or set VOX_MESH_HOME"
)

verbose_option: Final = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show all fields; on stderr the mesh and the origin of its settings.",
)


def mesh_report(settings: Settings) -> dict[str, Any]:
    """Return the record of the mesh and of the origins of its settings."""
    from vox_mesh.settings.origins import mesh_origin, setting_origins  # imported late: loads pydantic

    origins = [{"setting": name, "from": origin} for name, origin in setting_origins(settings).items()]
    return {
        "mesh": str(settings.home_dir.absolute()),
        "mesh_from": mesh_origin(settings),
        "settings": origins,
        "other_meshes": [{"mesh": str(home)} for home in other_meshes(settings)],
    }


def other_meshes(settings: Settings) -> list[Path]:
    """Return the homes in this repository that commands here do not use."""
    try:
        used = os.path.realpath(settings.home_dir)
        return [home for home in repository_homes() if os.path.realpath(home) != used]
    except OSError:  # the current folder was deleted
        return []


def print_mesh(settings: Settings) -> None:
    """Print the mesh and the origins of its settings on stderr."""
    report = mesh_report(settings)
    _print(f"mesh: {report['mesh']}, from {report['mesh_from']}")
    for each in report["settings"]:
        _print(f"{each['setting']}: from {each['from']}")
    warn_of_other_meshes(settings)


def warn_of_other_meshes(settings: Settings) -> None:
    """Print a warning on stderr for each second mesh of the repository."""
    for home in other_meshes(settings):
        _print(f"warning: {SECOND_MESH}: {home}; {SECOND_MESH_ADVICE}")


def _print(line: str) -> None:
    click.echo(printable(line), err=True)
