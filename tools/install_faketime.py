"""Install Debian's libfaketime into the cache, without root; print the path of the library.

It lets a test set the clock of a running server. Where there is no apt, there is no libfaketime, and the
tests that need it are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tools.install_sqld import cache_folder

_PACKAGE: Final = "libfaketime"
_LIBRARY: Final = "libfaketimeMT.so.1"
_DOWNLOAD_S: Final = 60
_UNPACK_S: Final = 30
_DEBIAN: Final = ("apt-get", "dpkg-deb")
_FAKED_YEAR: Final = "2001"


class NoFaketime(Exception):
    """There is no libfaketime on this machine; the message says why."""


@cache
def library() -> Path:
    """Return the library, installed if necessary; raise `NoFaketime` if it can't be."""
    folder = cache_folder() / "faketime-debian"
    if (found := _found_in(folder)) is not None:
        return found
    missing = [tool for tool in _DEBIAN if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        raise NoFaketime(f"libfaketime comes from Debian's packages: no {missing or 'Linux'} here")
    # Built next to its place and tested there: the folder with the final name is complete, and works.
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        _download(draft)
        _try_out(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    installed = _found_in(folder)
    assert installed is not None
    return installed


def _found_in(folder: Path) -> Path | None:
    return next(iter(sorted(folder.rglob(_LIBRARY))), None) if folder.is_dir() else None


def _download(folder: Path) -> None:
    """Download the package with apt, which checks it against Debian's signed index, and unpack it."""
    quick = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15")
    _run([*_DEBIAN[:1], *quick, "download", _PACKAGE], folder, _DOWNLOAD_S)
    packages = sorted(folder.glob(f"{_PACKAGE}_*.deb"))
    if not packages:
        raise NoFaketime(f"apt-get downloaded no {_PACKAGE}")
    _run(["dpkg-deb", "-x", str(packages[0]), str(folder)], folder, _UNPACK_S)


def _try_out(folder: Path) -> None:
    found = _found_in(folder)
    if found is None:
        raise NoFaketime(f"the package {_PACKAGE} has no {_LIBRARY}")
    faked = {"LD_PRELOAD": str(found), "FAKETIME": f"@{_FAKED_YEAR}-06-01 12:00:00"}
    if _run(["date", "+%Y"], folder, _UNPACK_S, faked).strip() != _FAKED_YEAR:
        raise NoFaketime("libfaketime does not work on this machine")


def _run(command: list[str], folder: Path, timeout_s: float, more: dict[str, str] | None = None) -> str:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **(more or {})},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoFaketime(f"{command[0]} failed: {error}") from None


if __name__ == "__main__":
    try:
        print(library())
    except NoFaketime as reason:
        print(f"tests that set a server's clock are skipped: {reason}", file=sys.stderr)
