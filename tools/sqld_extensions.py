"""Build the extension that takes away the server's SQL functions for files, as `deploy/sqld` does."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tools.install_sqld import cache_folder

_DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy" / "sqld"
_BUILD_TIMEOUT_S: Final = 300
_COMPILERS: Final = ("cc", "gcc", "clang")


@cache
def extensions() -> Path:
    """Return the folder for `--extensions-path`, built if necessary."""
    source = (_DEPLOY / "no_file_access.c").read_bytes() + (_DEPLOY / "build_extension.sh").read_bytes()
    folder = (
        cache_folder() / f"sqld-extensions-{platform.machine()}-{hashlib.sha256(source).hexdigest()[:12]}"
    )
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        build(draft)
        try:
            draft.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(draft)
    return folder


def build(folder: Path) -> None:
    """Build the extension into a folder."""
    subprocess.run(
        ["sh", _DEPLOY / "build_extension.sh", folder],
        env={**os.environ, "CC": _compiler()},
        check=True,
        stdout=sys.stderr,
        timeout=_BUILD_TIMEOUT_S,
    )


def _compiler() -> str:
    """Return a C compiler, or without one the one from a Python package."""
    if chosen := os.environ.get("CC"):
        return chosen
    for name in _COMPILERS:
        if found := shutil.which(name):
            return found
    try:
        import ziglang  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "ziglang"]
        subprocess.run(pip, check=True, stdout=sys.stderr, timeout=_BUILD_TIMEOUT_S)
    return f"{sys.executable} -m ziglang cc"


if __name__ == "__main__":
    print(extensions())
