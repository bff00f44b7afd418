"""The README: short, without inner workings, and its quickstart works from the wheel as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.project.test_docs import blocks, is_target
from tests.project.test_wheel import wheel  # noqa: F401 - a fixture

_README: Final = Path(__file__).resolve().parents[2] / "README.md"
_MAX_WORDS: Final = 1_000
_INNER: Final = re.compile(r"\bULID\b|--ulid|\b01[0-9A-HJKMNP-TV-Z]{24}\b|OpKind|SELECT|INSERT|\bScript\(")
_TIMEOUT_S: Final = 120


def test_it_is_read_in_two_minutes() -> None:
    assert len(_README.read_text().split()) <= _MAX_WORDS


def test_it_shows_no_inner_workings() -> None:
    assert _INNER.findall(_README.read_text()) == []


@pytest.fixture
def fresh(tmp_path: Path, wheel: Path) -> Path:  # noqa: F811 - the fixture
    """A fresh virtual environment with the wheel; its dependencies are those of this one."""
    folder = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=_TIMEOUT_S)
    python = folder / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "--quiet",
        "install",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=_TIMEOUT_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def _script() -> tuple[str, list[str]]:
    """What the page shows, as one script for a shell, and the lines that it is to print."""
    lines, expected = ["set -e", "trap 'kill $(jobs -p) && wait' EXIT"], []
    for kind, text in blocks(_README):
        if kind == "python":
            lines.append(f"python -c {shlex.quote(text)}")
            expected += re.findall(r"print\(.*\)  # (.+)", text)
            continue
        for line in text.splitlines():
            if not line.startswith("$ "):
                expected.append(line)
            elif line.startswith("$ make "):  # needs the repository; see the test of the demo
                assert is_target(line.split()[2])
            else:
                lines.append(line.removeprefix("$ "))
    return "\n".join(lines), expected


def test_the_quickstart_works_literally_in_an_empty_folder(fresh: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    script, expected = _script()
    assert "vox-mesh init" in script
    path = f"{fresh}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(folder), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode in (0, 143), done.stdout + done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in expected if line not in printed] == [], done.stdout + done.stderr
    assert not [line for line in printed if line.startswith(("warn ", "fail "))]
