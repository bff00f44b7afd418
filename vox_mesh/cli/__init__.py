"""The command line: `vox-mesh NOUN VERB`."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from vox_mesh.cli.support import COMPLETE
from vox_mesh.cli.support.early_signals import heed_early_signals

_RARELY: Final = 20_000
_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command that was typed and end with its exit code."""
    heed_early_signals(sys.argv[1:])
    gc.set_threshold(_RARELY)  # most of what is made at first are modules: looking for garbage finds none
    if COMPLETE in os.environ:
        from vox_mesh.cli.completion import complete

        raise SystemExit(complete())
    try:
        from vox_mesh.cli.app import run
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    raise SystemExit(run(sys.argv[1:]))
