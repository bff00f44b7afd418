"""What the judge of backups finds."""

from __future__ import annotations

from typing import Any

import pytest

from proof.checkers.backups import BACKUP_CHECKS
from tests.proof.checkers.story import Story, faults

_ENTRIES = [("ada", 1, "a", "aa"), ("ada", 2, "b", "bb")]


def _story(names: tuple[str, ...] = ("second",), later: bool = False, **content: Any) -> Story:
    """Ada appended two ops, and made two backups, of which the second one holds this."""
    story = Story()
    for chain, seq, op, digest in _ENTRIES:
        story.did("ada", "log.append", {"key": op}, spooled=False)
        story.node("monitor").note("monitor.head", chain=chain, seq=seq, hash=digest, asked_at=0.0)
        story.final("agent_oplog", node_id=chain, seq=seq, op_id=op, hash=digest)
    for name in ("first", "second"):
        story.did("ada", "backup.make", {}, backup=name)
    if later:
        with story.node("bob").operation("backup.make") as record:
            record.unknown()
    story.did("ada", "log.append", {"key": "c"}, spooled=False)
    story.node("stage").note("final.backups", names=list(names))
    whole = {"entries": _ENTRIES, "jobs": [("job", "b")], "problems": [], "last_id": 7, "witnessed_id": 7}
    story.node("stage").note(
        "final.backup", name="second", **(content if "error" in content else whole | content)
    )
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_story(), ""),
        (_story(names=("first",), later=True), ""),
        (_story(names=("first",)), "second was the last one made, and is not listed"),
        (_story(error="a chunk is missing"), "second can't be used: a chunk is missing"),
        (_story(problems=["ada/2: cut off"]), "second, restored: ada/2: cut off"),
        (_story(witnessed_id=8), "ends with entry 7 of the log, and entry 8 was seen"),
        (_story(jobs=[("job", "c")]), "second has job job, and not its last op c"),
        (_story(entries=_ENTRIES[:1], jobs=[]), "second lacks op b"),
        (_story(entries=_ENTRIES[:1], jobs=[]), "second lacks entry 2 of ada"),
        (_story(entries=[*_ENTRIES, ("ada", 3, "c", "cc")], jobs=[]), "second has another entry 3 of ada"),
    ],
)
def test_a_backup_that_is_not_complete_or_not_of_one_moment_is_found(story: Story, fault: str) -> None:
    found = " ".join(faults(BACKUP_CHECKS, "backups-restore", story))
    assert fault in found
    assert bool(found) is bool(fault)
