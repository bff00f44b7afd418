"""What the judge of the archive finds."""

from __future__ import annotations

import orjson
import pytest

from proof.checkers.archives import ARCHIVE_CHECKS
from tests.proof.checkers.story import Story, faults

_ENTRIES = {1: "ab", 2: "c", 3: "def"}
"""The entries in each segment, by the letters of their ops."""


def _story(stored: dict[int, str], numbers: tuple[int, ...] = (1, 2, 3), *problems: str) -> Story:
    """Segments are recorded in this order, and the archive holds these entries of them."""
    story = Story()
    for number, op in enumerate("abcdefg", 1):
        story.final("agent_oplog", id=number, op_id=op, hash=op * 2, kind="note", accepted=1)
    bounds = {1: (0, 2), 2: (2, 3), 3: (3, 6)}
    for place, number in enumerate(numbers):
        after_id, last_id = bounds[number]
        segment = {"number": number, "after_id": after_id, "last_id": last_id, "sha256": f"file {number}"}
        payload = orjson.dumps(segment).decode()
        kind = {"kind": "ArchiveSegment", "accepted": 1, "payload": payload}
        story.final("agent_oplog", id=10 + place, op_id=f"s{place}", hash="", **kind)
    for number, ops in stored.items():
        entries = [["abcdefg".index(op) + 1, op, op * 2, "ada", "abcdefg".index(op) + 1] for op in ops]
        story.node("stage").note("final.segment", sha256=f"file {number}", entries=entries)
    story.did("ada", "archive.verify", {}, chains=1, problems=list(problems))
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_story(_ENTRIES), ""),
        (_story(_ENTRIES | {4: "g"}), ""),
        (_story({1: "ab", 3: "def"}), "segment 2 is recorded, and the archive has no such file"),
        (_story(_ENTRIES | {3: "df"}), "segment 3 has 2 entries, which are not the 3 of the log"),
        (_story(_ENTRIES | {1: "ag"}), "segment 1 has 2 entries"),
        (_story(_ENTRIES, (1, 2, 2, 3)), "segment 2 is recorded after segment 2"),
        (_story(_ENTRIES, (1, 3)), "segment 3 is recorded after segment 1"),
        (_story(_ENTRIES, (1, 2, 3), "segment 1 is missing"), "ada found"),
    ],
)
def test_an_archive_that_is_not_what_the_log_records_is_found(story: Story, fault: str) -> None:
    found = " ".join(faults(ARCHIVE_CHECKS, "archive-verifies", story))
    assert fault in found
    assert bool(found) is bool(fault)
