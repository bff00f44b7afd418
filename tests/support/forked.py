"""Commands in processes of their own that need not load Python first: each is forked from one that has."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from vox_mesh.cli import main

_FORKS: Final = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.forked", "vox_mesh.cli.app", "aiohttp", "click", "orjson"])


def run(
    arguments: tuple[str, ...], folder: Path, variables: dict[str, str], told: Path, patience_s: float
) -> int:
    """Run `vox-mesh` to its end, with these variables and no others; what it says is in `told`."""
    process = _FORKS.Process(target=_command, args=(arguments, folder, variables, told))
    process.start()
    try:
        process.join(patience_s)
        assert process.exitcode is not None, f"vox-mesh {' '.join(arguments)} does not end"
        code = told / "code"  # who forks it now and then fails to pass it on
        return int(code.read_text()) if code.exists() else process.exitcode
    finally:
        process.kill()
        process.join()
        process.close()


def _command(arguments: tuple[str, ...], folder: Path, variables: dict[str, str], told: Path) -> None:
    for descriptor, name in ((0, os.devnull), (1, told / "out"), (2, told / "err")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = ["vox-mesh", *arguments]
    try:
        main()
    except SystemExit as ending:
        (told / "code").write_text(str(ending.code or 0))
        raise
