"""The drawing of a job's life in the documentation, as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.model.jobs.records import JobState

_PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "concepts" / "jobs.md"
_DIAGRAM: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ARROW: Final = re.compile(r"(\S+) --> (\S+)(?:: (\w+)( of a predecessor)?)?")
_NOTHING: Final = "[*]"


class Arrow(NamedTuple):
    """One arrow: what takes a job from a state, or from nothing, to another; or with its predecessor."""

    op: str
    source: JobState | None
    target: JobState
    is_of_predecessor: bool


class Drawing(NamedTuple):
    """The arrows, and the states after which nothing comes."""

    arrows: frozenset[Arrow]
    ends: frozenset[JobState]


def drawn() -> Drawing:
    """What the page shows; a line that is no arrow is a mistake."""
    (diagram,) = _DIAGRAM.findall(_PAGE.read_text())
    arrows: set[Arrow] = set()
    ends: set[JobState] = set()
    for line in diagram.splitlines():
        found = _ARROW.fullmatch(line.strip())
        assert found is not None, line
        source, target, op, of_predecessor = found.groups()
        if target == _NOTHING:
            assert op is None, line
            ends.add(JobState(source))
            continue
        arrow = Arrow(
            op, None if source == _NOTHING else JobState(source), JobState(target), of_predecessor is not None
        )
        assert arrow not in arrows, line
        arrows.add(arrow)
    return Drawing(frozenset(arrows), frozenset(ends))
