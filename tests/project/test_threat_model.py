"""The threat model: every line is checked by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
_LINES: Final = [
    line
    for line in (_ROOT / "docs" / "concepts" / "threat-model.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| credential", "| ---"))
]


@pytest.mark.parametrize("line", _LINES, ids=lambda line: line.split("|")[1].strip()[:40])
def test_every_line_names_tests_that_exist(line: str) -> None:
    code = "".join(path.read_text() for path in (_ROOT / "tests" / "attacks").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", line)
    assert named
    for name in named:
        assert f"def {name}(" in code
