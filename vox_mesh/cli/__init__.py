"""The command line: `vox-mesh NOUN VERB`."""

from __future__ import annotations

import gc
import os
import sys

from vox_mesh.cli.support import COMPLETE

TYPE_CHECKING = False  # that of `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Final, NoReturn

_GC_THRESHOLD: Final = 200_000
"""Higher than the number of objects that a short command creates."""

_INTERRUPTED: Final = 130


def _handle_early_signals() -> None:
    from vox_mesh.cli.support.early_signals import handle_early_signals  # slow to import

    handle_early_signals(sys.argv[1:])


def _hide_secrets() -> None:
    """Take secrets out of the environment first: programs that a command starts must not inherit them."""
    from vox_mesh.settings.secrets import SECRET_VARIABLES, take_variables

    take_variables(SECRET_VARIABLES)


def _ask_node() -> None:
    """Exit with the code of the command, if a running node's command server runs it."""
    if sys.platform == "linux":
        from vox_mesh.cli.command_server.client import run_at_node

        if (code := run_at_node(sys.argv[1:])) is not None:
            raise SystemExit(code)


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        code = _main()
    except KeyboardInterrupt:  # while it was loading; later ones have a line of their own
        code = _INTERRUPTED
    _exit(code)


def _main() -> int:
    _ask_node()
    _handle_early_signals()
    _hide_secrets()
    gc.set_threshold(_GC_THRESHOLD)  # start-up creates modules, in which a collection finds no garbage
    if COMPLETE in os.environ:
        from vox_mesh.cli.completion import complete

        return complete()
    from vox_mesh.cli.app import run

    return run(sys.argv[1:])


def _exit(code: int) -> NoReturn:
    """Exit at once if no other thread is left: the interpreter would first take down all it has loaded."""
    import threading  # loaded by every command

    gc.freeze()  # or the interpreter searches everything that was loaded for garbage as it exits
    if threading.active_count() == 1 and not sys.flags.interactive:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (AttributeError, OSError, ValueError):  # closed
            raise SystemExit(code) from None
        os._exit(code)
    raise SystemExit(code)
