"""`vox-mesh rule`: rules are added, listed and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from vox_mesh.cli import app


def test_rules_are_added_listed_and_removed(shared: VoxCommand) -> None:
    arguments = ("rule", "add", "report", "BreakLock", "--kind", "a.b", "--payload", '{"n": 1}')
    added = shared(*arguments, "--fields", '{"lock": "x"}', "--json").document
    assert (added["op_kind"], added["fields"]) == ("BreakLock", {"lock": "x"})
    assert added["manifest"] == {"kind": "a.b", "payload": {"n": 1}}
    assert (added["last_op"], added["last_job"]) == (None, None)
    shared("rule", "add", "make", "SetTempo", "--", "make", "--json")
    listed = shared("rule", "list").out.splitlines()
    assert listed[0].split() == ["name", "op", "kind", "fields", "job", "last", "op", "last", "job"]
    assert "exec: make --json" in listed[1]
    assert shared("rule", "list", "--json").document[1] == added
    other = shared(*arguments)
    assert (other.code, "rule report exists already with another definition" in other.error) == (2, True)
    assert shared("rule", "remove", "make", "--json").document == {"name": "make", "removed": True}
    gone = shared("rule", "remove", "make")
    assert (gone.code, "there is no rule make; run `vox-mesh rule list`" in gone.error) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("r", "BreakLock"), "pass exactly one of -f FILE, --kind KIND and -- COMMAND"),
        (("r", "ScheduleJob", "--kind", "a"), "a rule can't fire on ScheduleJob"),
        (("r", "BreakLok", "--kind", "a"), "op kind 'BreakLok' not found"),
        (("r", "BreakLock", "--kind", "a", "--fields", "{"), "--fields: must be JSON"),
        (("r", "BreakLock", "--kind", "a", "--fields", "[]"), "--fields: must be a JSON object"),
        (("r", "BreakLock", "--kind", "a", "--payload", "1"), "payload: must be an object without"),
        (("r", "BreakLock", "-f", "two.yaml"), "a rule must have 1 manifest, got 2"),
        (("r s", "BreakLock", "--kind", "a"), "a rule's name must be"),
    ],
)
def test_what_can_not_be_added_ends_with_2_and_one_line(
    arguments: tuple[str, ...],
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "two.yaml").write_text("kind: a\n---\nkind: b\n")
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert app.run(["rule", "add", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, fault in shown.err, shown.err.count("\n")) == ("", True, 1), shown.err


@pytest.mark.parametrize("command", ["add r BreakLock --kind a", "list", "remove r"])
def test_on_the_memory_home_there_are_no_rules(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_wrong_usage(f"rule {command}", "needs a mesh, and", capsys)
