"""`vox-mesh rhythm`: the tempo of the mesh."""

from __future__ import annotations

import click

from vox_mesh.cli.rhythm.rhythm_policy import policy
from vox_mesh.cli.rhythm.rhythm_report import report


@click.group(no_args_is_help=False)
def rhythm() -> None:
    """See and set how fast the mesh goes, and what becomes of each bar."""


rhythm.add_command(policy)
rhythm.add_command(report)
