"""What the judge of the archive finds."""

from __future__ import annotations

import orjson
import pytest

from proof.archived_log import log_rows
from proof.checkers.archives import ARCHIVE_CHECKS
from tests.proof.checkers.story import Story, faults
from vox_mesh.model.oplog.deletion import DELETE, DeletedRange, Deletion
from vox_mesh.model.oplog.segment import ARCHIVE

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


def _archived(story: Story, file: str, ops: str) -> None:
    """A file of the archive holds these entries from the second on, by their ops; the database lacks them."""
    rows = [_row(number, op, "ada", number) for number, op in enumerate(ops, 2)]
    story.node("stage").note("final.segment", sha256=file, entries=[list(row.values()) for row in rows])
    for row in rows:
        story.node("stage").note("final.archived", row=row)


def _row(number: int, op: str, node: str, seq: int) -> dict[str, int | str]:
    return {"id": number, "op_id": op, "hash": op * 64, "node_id": node, "seq": seq}


@pytest.mark.parametrize("files", [("kept", "lost"), ("lost", "kept")])
def test_entries_in_files_that_no_op_records_are_not_taken_for_the_logs(files: tuple[str, str]) -> None:
    story = Story()
    story.final("agent_oplog", **_row(1, "a", "ada", 1), kind="note", accepted=1)
    segment = orjson.dumps({"number": 1, "after_id": 0, "last_id": 3, "sha256": "kept"}).decode()
    story.final("agent_oplog", **_row(4, "s", "bob", 1), kind=ARCHIVE, accepted=1, payload=segment)
    gap = DeletedRange(2, 3, "a" * 64, "c" * 64)
    deletion = Deletion(1, "d" * 64, 3, {"ada": [gap]}, []).payload
    story.final("agent_oplog", **_row(5, "t", "bob", 2), kind=DELETE, accepted=1, payload=deletion)
    for file in files:
        _archived(story, file, {"kept": "bc", "lost": "xy"}[file])
    assert [row["op_id"] for row in log_rows(story.history())] == ["a", "b", "c", "s", "t"]
