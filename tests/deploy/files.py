"""What lies in `deploy/`, read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
DOCKERFILES: Final = (DEPLOY / "docker" / "Dockerfile", DEPLOY / "sqld" / "Dockerfile")
SOME_TOKEN: Final = "a-token-that-is-long-enough-for-this"
_VARIABLE: Final = re.compile(r"\bVOX_[A-Z_]*[A-Z]\b")


def texts() -> dict[Path, str]:
    """All files that are there for others to use."""
    return {path: path.read_text() for path in sorted(DEPLOY.rglob("*")) if path.is_file()}


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def variables(text: str) -> set[str]:
    """Our variables that a text names."""
    return set(_VARIABLE.findall(text))


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: each one's name, and the rest of its lines as one."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(words[0], words[1]) for words in (line.split(None, 1) for line in joined.splitlines()) if words]
