"""The extension that takes away the server's SQL functions for files, compiled where it runs."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from vox_mesh.contrib.sqld.errors import ServerNotInstalled, ToolMissing

_TIMEOUT_S: Final = 300
_COMPILERS: Final = ("cc", "gcc", "clang")


def script(name: str) -> Path:
    """Return a file of `deploy/sqld`, which the wheel has in this package."""
    package = Path(__file__).resolve().parent
    packaged = package / name
    return packaged if packaged.exists() else package.parents[2] / "deploy" / "sqld" / name


def installed_extensions(folder: Path) -> Path | None:
    """Return the folder for `--extensions-path` in a folder, or `None` if it was not built."""
    place = _place(folder)
    return place if (place / "trusted.lst").exists() else None


def install_extensions(folder: Path) -> Path:
    """Return the folder for `--extensions-path`, built if necessary.

    Raises `ToolMissing` without a compiler.
    """
    place = _place(folder)
    if installed_extensions(folder) is None:
        draft = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            build_extension(draft)
            draft.rename(place)
        except OSError:
            if not place.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def build_extension(folder: Path) -> None:
    """Build the extension into a folder."""
    command = ["sh", str(script("build_extension.sh")), str(folder)]
    environment = {**os.environ, "CC": compiler()}
    try:
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr, timeout=_TIMEOUT_S)  # noqa: S603 - a fixed list
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise ServerNotInstalled(
            f"{environment['CC']} could not build the extension that protects the server's files",
            hint="see its output above; set CC to a C compiler for this machine",
        ) from None


def compiler() -> str:
    """Return a C compiler: `CC`, one on the path, or without one that of a Python package."""
    if chosen := os.environ.get("CC"):
        return chosen
    for name in _COMPILERS:
        if found := shutil.which(name):
            return found
    if find_spec("ziglang") is None:
        raise ToolMissing(
            "a C compiler is needed, and none is installed: without the extension that it builds, any token "
            "can read and write the server's files",
            hint="install gcc or clang or `pip install 'vox-mesh[server]'`, or set CC",
        )
    return f"{sys.executable} -m ziglang cc"


def _place(folder: Path) -> Path:
    source = script("no_file_access.c").read_bytes() + script("build_extension.sh").read_bytes()
    return folder / f"sqld-extensions-{platform.machine()}-{hashlib.sha256(source).hexdigest()[:12]}"
