"""npm packages for tests: installed once, by one process, and used without a network afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.install_npm import OLDEST_NODE, _installed, packages, run_node


def test_programs_run_on_a_node_that_is_new_enough() -> None:
    program = "console.log(process.versions.node.split('.').slice(0, 2).join(' '))"
    ended = run_node("--eval", program, timeout_s=60)
    assert ended.returncode == 0, ended.stderr
    assert tuple(map(int, ended.stdout.split())) >= OLDEST_NODE


def test_an_installed_package_needs_neither_npm_nor_a_network() -> None:
    packages()
    # No path to npm, and no registry that would answer.
    offline = {**os.environ, "PATH": "/nowhere", "npm_config_registry": "http://127.0.0.1:9"}
    ended = subprocess.run(
        [sys.executable, "-c", "from tools.install_npm import packages; print(packages())"],
        env=offline,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout.strip(), ended.returncode) == (str(packages()), 0), ended.stderr


def test_of_several_at_once_one_installs(tmp_path: Path) -> None:
    runs: list[Path] = []

    def install(draft: Path) -> None:
        runs.append(draft)
        (draft / "file").write_text("complete")

    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: _installed(tmp_path / "npm" / "it", install), range(8)))
    assert len(runs) == 1
    assert {(place / "file").read_text() for place in places} == {"complete"}


def test_a_failed_installation_is_tried_again(tmp_path: Path) -> None:
    def broken(draft: Path) -> None:
        (draft / "half").write_text("")
        raise OSError("no network")

    place = tmp_path / "npm" / "it"
    with pytest.raises(OSError, match="no network"):
        _installed(place, broken)
    assert not place.exists()
    _installed(place, lambda draft: (draft / "file").touch())
    assert [path.name for path in place.iterdir()] == ["file"]
