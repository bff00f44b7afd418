"""Names and prose: class names are unique, and the words to avoid become fewer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGE: Final = _ROOT / "vox_mesh"

_AVOIDED: Final = (
    *("whoever", "nobody", "somebody", "told", "tells of", "anew", "in vain", "for ever", "so many"),
    *("so long as", "those that", "as it is", "at the most", "beside"),
)
_WORDS: Final = re.compile(rf"(?<!\w)({'|'.join(_AVOIDED)})(?!\w)", re.IGNORECASE)

_LIMITS: Final = {
    "vox_mesh": 0,
    "sql": 0,
    "docs": 9,
    "tests": 6,
    "proof": 10,
    "bench": 3,
    "tools": 0,
    "deploy": 0,
    "README.md": 0,
}
"""How often the words to avoid stand in each part. A limit goes down with the count, and never up."""

_PINNED: Final = re.compile(r"--anew\b|`anew`|\banew(?=[:=,)])|(?<=body\.)anew\b|(?<=anew=)anew\b")
"""The option and the key `anew` of budgets, which users have."""

_CLASS: Final = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)

_SAME_NAME: Final = frozenset({"AgentClient", "Mesh", "MeshApp"})
"""Those of `vox_mesh.sync` are the same things as those of `vox_mesh`, without `await`."""


def _files(part: str) -> Iterator[Path]:
    path = _ROOT / part
    if path.is_file():
        yield path
        return
    for each in sorted(path.rglob("*")):
        if each.suffix in {".py", ".sql", ".md", ".yaml", ".sh", ".service"} and each != Path(__file__):
            yield each


@cache
def _classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(_PACKAGE.rglob("*.py")):
        for name in _CLASS.findall(path.read_text()):
            found[name].append(str(path.relative_to(_ROOT)))
    return found


@pytest.mark.parametrize("part", _LIMITS)
def test_the_words_to_avoid_become_fewer(part: str) -> None:
    count = sum(len(_WORDS.findall(_PINNED.sub("", path.read_text()))) for path in _files(part))
    assert count <= _LIMITS[part], f"new words to avoid in {part}: {', '.join(_AVOIDED)}"


def test_a_word_to_avoid_is_seen() -> None:
    assert _WORDS.findall("Whoever was told so; he is untold") == ["Whoever", "told"]


def test_class_names_are_unique() -> None:
    twice = {name: paths for name, paths in _classes().items() if len(paths) > 1 and name not in _SAME_NAME}
    assert twice == {}
