"""Commands of an agent that has no database, and speaks to a node."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tools.fork_server import Program
from tools.forked import Process

_NONE: Final[Mapping[str, str]] = {}
_PATIENCE_S: Final = 60.0


class EndedCommand(NamedTuple):
    """How a command ended."""

    code: int | None
    out: str
    err: str


async def run_through(
    folder: Path, *arguments: str, as_user: int | None = None, variables: Mapping[str, str] = _NONE
) -> EndedCommand:
    """Run a command as the agent `coder` through the socket in a folder, in a folder of its own."""
    own = folder / "own"
    own.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(own),
        "VOX_MESH_NODE": f"unix:{folder / 'agents.sock'}",
        "VOX_AGENT_ID": "coder",
    }
    environment |= variables
    if as_user is None:
        program = Program(arguments, environment, module="vox_mesh.cli", folder=str(own))
        return await asyncio.to_thread(_run, program)
    # It may read the interpreter in this user's home, but neither write nor connect as this user.
    drop = ["setpriv", f"--reuid={as_user}", f"--regid={as_user}", "--clear-groups"]
    drop += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    drop += ["--bounding-set=-all,+dac_read_search"]
    process = await asyncio.create_subprocess_exec(
        *(*drop, sys.executable, "-m", "vox_mesh.cli", *arguments),
        env=environment,
        cwd=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    return EndedCommand(process.returncode, out.decode(), err.decode())


def _run(program: Program) -> EndedCommand:
    """Run a program to its end, without loading Python again."""
    with Process(program) as process:
        out, err = process.communicate(_PATIENCE_S)
    return EndedCommand(process.returncode, out, err)
