"""Generate vox_mesh/cli/summaries.py, from which `vox-mesh --help` lists the commands without loading them.

`python -m tools.cli_summaries` writes it; a test checks that it is up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.app import NAME, app
from vox_mesh.cli.support.output import summary_of

MODULE: Final = Path(__file__).resolve().parents[1] / "vox_mesh" / "cli" / "summaries.py"

_HEAD: Final = '''"""Summaries of all commands. Written by `python -m tools.cli_summaries`; do not edit."""

from __future__ import annotations

from typing import Final

SUMMARIES: Final = {
'''


def module() -> str:
    """Return the text of the module."""
    context = click.Context(app, info_name=NAME)
    lines = []
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        lines.append(f'    "{name}": "{summary_of(command)}",\n')
    return "".join((_HEAD, *lines, "}\n"))


if __name__ == "__main__":
    MODULE.write_text(module())
