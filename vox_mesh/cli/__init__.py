"""The command line: `vox-mesh NOUN VERB`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that was typed and end with its exit code."""
    from vox_mesh.cli.app import run

    raise SystemExit(run(sys.argv[1:]))
