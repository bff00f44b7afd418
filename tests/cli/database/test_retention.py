"""Commands of retention: policies, pruning by hand, and sizes."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import VoxCommand


def answered(vox: VoxCommand, *arguments: str) -> Any:
    """What a command prints as JSON."""
    ended = vox(*arguments, "--json")
    assert ended.code == 0, ended
    return ended.document


def test_a_policy_is_set_shown_and_removed(vox: VoxCommand) -> None:
    build = ("--kind", "build", "--age", "7d", "--max-rows", "10000")
    assert answered(vox, "db", "retention", "set", "jobs", *build) == {
        "subject": "jobs",
        "kind": "build",
        "age": "7d",
        "max_rows": 10_000,
        "max_bytes": None,
    }
    assert answered(vox, "db", "retention", "set", "logs", "--age", "never")["age"] is None
    shown = {
        (each["subject"], each["kind"]): each for each in answered(vox, "db", "retention", "show")["policies"]
    }
    assert (shown["jobs", "build"]["age"], shown["jobs", None]["age"]) == ("7d", "30d")
    assert [shown["logs", None][name] for name in ("age", "is_default")] == [None, False]
    assert answered(vox, "db", "retention", "set", "logs", "--default")["is_default"]
    lines = vox("db", "retention", "show").out.splitlines()
    assert lines[0].split() == ["subject", "kind", "age", "max_rows", "max_bytes", "pruned", "needed"]


def test_a_policy_that_says_nothing_is_refused(vox: VoxCommand) -> None:
    for arguments in ((), ("--default", "--age", "1d"), ("--max-rows", "-1")):
        ended = vox("db", "retention", "set", "jobs", *arguments)
        assert (ended.code, ended.out) == (2, "")
    ended = vox("db", "retention", "set", "logs", "--max-rows", "5")
    assert ended.code != 0
    assert "logs are pruned by age only" in ended.err


def test_pruning_by_hand_says_what_it_pruned(vox: VoxCommand) -> None:
    for _ in range(3):
        job = answered(vox, "job", "schedule", "--kind", "work")
        assert vox("job", "abort", job["job_id"], "--reason", "test").code == 0
    assert vox("db", "retention", "set", "jobs", "--max-rows", "0").code == 0
    planned = answered(vox, "db", "prune", "--dry-run")
    assert {"subject": "jobs", "pruned": 2, "needed": 1} in planned  # the newest row stays
    assert answered(vox, "db", "prune") == planned
    assert {"subject": "jobs", "pruned": 0, "needed": 1} in answered(vox, "db", "prune", "--dry-run")
    assert answered(vox, "job", "rebuild", "--check")["differences"] == []


def test_the_sizes_of_tables_are_shown(vox: VoxCommand) -> None:
    answered(vox, "job", "schedule", "--kind", "work")
    sizes = {each["table"]: each for each in answered(vox, "db", "stats")}
    assert sizes["jobs"]["rows"] == 1
    assert sizes["jobs"]["bytes"] > 0
    assert vox("db", "stats").out.splitlines()[0].split()[:3] == ["table", "rows", "bytes"]


def test_a_file_is_compacted_when_no_node_runs(vox: VoxCommand) -> None:
    answered(vox, "job", "schedule", "--kind", "work")
    done = answered(vox, "db", "compact")
    assert 0 < done["bytes"] <= done["bytes_before"]
    assert vox("db", "stats").code == 0
    assert answered(vox, "oplog", "verify") is not None
