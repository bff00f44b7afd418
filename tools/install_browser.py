"""Find the machine's Chromium or Chrome, or install Debian's; print its path.

Tests of the web console drive it. Debian's package is installed where the user is root and has apt. Where no
browser can be had, the tests that need one are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "VOX_BROWSER"
"""Names a browser to use instead of the first one found."""

_COMMANDS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MACOS: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_PACKAGE: Final = "chromium"
_UPDATE_S: Final = 120
_INSTALL_S: Final = 480
_QUICK: Final = (
    "-o",
    "Acquire::Retries=0",
    "-o",
    "Acquire::http::Timeout=15",
    "-o",
    "DPkg::Lock::Timeout=300",
)


class NoBrowser(Exception):
    """There is no browser on this machine; the message says why."""


@cache
def browser() -> Path:
    """Return the path of a browser; raise `NoBrowser` if there is none. Install nothing."""
    chosen = os.environ.get(VARIABLE)
    for name in (chosen,) if chosen else (*_COMMANDS, *_MACOS):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    if chosen:
        raise NoBrowser(f"{VARIABLE} must name a browser, got {chosen}")
    raise NoBrowser("no Chromium or Chrome found; install one, or run `make test` as root on Debian")


def install() -> Path:
    """Return the path of a browser, installed if necessary; raise `NoBrowser` if it can't be."""
    try:
        return browser()
    except NoBrowser:
        if os.environ.get(VARIABLE) or shutil.which("apt-get") is None or os.geteuid() != 0:
            raise
    try:
        _install_package()
    except NoBrowser:
        # The lists of packages may be missing, as in images, or too old.
        _apt("update", timeout_s=_UPDATE_S)
        _install_package()
    return browser()


def _install_package() -> None:
    _apt("install", "--yes", "--no-install-recommends", _PACKAGE, timeout_s=_INSTALL_S)


def _apt(*arguments: str, timeout_s: float) -> None:
    try:
        subprocess.run(
            ["apt-get", "--quiet", *_QUICK, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [str(error)]
        raise NoBrowser(f"apt-get {arguments[0]} failed: {lines[-1]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBrowser(f"apt-get {arguments[0]} failed: {error}") from None


if __name__ == "__main__":
    try:
        print(install())
    except NoBrowser as reason:
        print(f"tests of the web console are skipped: {reason}", file=sys.stderr)
