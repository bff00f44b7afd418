"""Scripts that use the blocking mesh, in processes of their own; the settings are in the environment."""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings
from typing import Final

from vox_mesh import MeshError
from vox_mesh.sync import Mesh

_STUCK_S: Final = 25.0


def wait_for_ctrl_c() -> None:
    """Hold a lock, and wait for a message that never comes; if it does not end, say where it is."""
    faulthandler.dump_traceback_later(_STUCK_S, exit=True)
    with Mesh.open() as mesh, mesh.locks.hold("release", agent="script"):
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        for _ in mesh.messages.receive("script"):
            raise AssertionError("no one sends anything")


def use_in_a_fork() -> None:
    """Have a fork use a mesh that is not its own, and go on to the end of the block."""
    warnings.simplefilter("ignore")  # newer versions of Python warn of every fork of a process with threads
    with Mesh.open() as mesh:
        forked = os.fork()
        if not forked:
            try:
                mesh.nodes.all()
            except MeshError as error:
                sys.stdout.write(f"{error.code}: {error.line}\n")
        else:
            _, status = os.waitpid(forked, 0)
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {len(mesh.nodes.all())}\n")


if __name__ == "__main__":
    {"ctrl_c": wait_for_ctrl_c, "fork": use_in_a_fork}[sys.argv[1]]()
