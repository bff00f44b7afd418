"""`vox-mesh cron`: jobs that come again and again are added, listed and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from vox_mesh.cli import app


def test_crons_of_all_three_ways_are_added_listed_and_removed(shared: VoxCommand) -> None:
    def add(*arguments: str) -> Any:
        return shared("cron", "add", *arguments, "--json").document

    assert shared("cron", "list", "--json").document == []
    (shared.folder / "job.yaml").write_text("kind: a.b\npayload: {n: 1}\npriority: 3\nlease: 90s\n")
    filed = add("filed", "0 8 * * MON-FRI", "-f", "job.yaml", "--timezone", "Europe/Berlin")
    assert (filed["manifest"], filed["timezone"]) == ({"kind": "a.b", "payload": {"n": 1}}, "Europe/Berlin")
    assert filed["options"] == {"priority": 3, "lease": 90_000}
    kind = add("kind", "*/5 * * * *", "--kind", "a.c", "--payload", '["x"]', "--timeout", "1m")
    assert kind["manifest"] == {"kind": "a.c", "payload": ["x"], "timeout": 60}
    command = shared("cron", "add", "command", "@daily", "--json", "--", "echo", "--json", "--", "x").document
    assert command["manifest"]["command"] == ["echo", "--json", "--", "x"]
    assert command["manifest"]["timeout"] == 3_600
    assert (command["last_ms"], command["last_job"]) == (None, None)
    listed = shared("cron", "list", "--json").document
    assert listed == [command, filed, kind]
    lines = shared("cron", "list").out.splitlines()
    assert lines[0].split()[:4] == ["name", "expression", "timezone", "job"]
    assert "exec: echo --json -- x" in lines[1]
    assert add("kind", "*/5  * * * *", "--kind", "a.c", "--payload", '["x"]', "--timeout", "60") == kind
    other = shared("cron", "add", "kind", "*/5 * * * *", "--kind", "a.c")
    assert (
        other.code,
        "cron kind exists already with another definition; remove it first" in other.error,
    ) == (2, True)
    assert shared("cron", "remove", "kind", "--json").document == {"name": "kind", "removed": True}
    gone = shared("cron", "remove", "kind")
    assert (gone.code, "there is no cron kind" in gone.error) == (1, True)
    assert [each["name"] for each in shared("cron", "list", "--json").document] == ["command", "filed"]


_ONE_WAY = "pass exactly one of -f FILE, --kind KIND and -- COMMAND"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "missing argument"),
        (("c", "* * * * *"), _ONE_WAY),
        (("c", "* * * * *", "--kind", "a", "--", "echo"), _ONE_WAY),
        (("c", "* * * * *", "--kind", "a", "-f", "two.yaml"), _ONE_WAY),
        (("c", "* * * * *", "--payload", "1", "--", "echo"), "--payload needs --kind"),
        (("c", "* * * * *", "--timeout", "1m", "-f", "two.yaml"), "--timeout can't be combined with --file"),
        (
            ("c", "* * * * *", "--timeout", "500ms", "--", "echo"),
            "--timeout must be in whole seconds, got 0.5",
        ),
        (("c", "* * * * *", "--timeout", "31d", "--", "echo"), "timeout: 2678400 is too long"),
        (("c", "* * * * *", "--kind", "a", "--payload", "{"), "--payload: must be JSON"),
        (("c", "* * * * *", "--kind", "A"), "kind: must not be"),
        (("c", "* * * * *", "--kind", "exec"), "exec is the kind of jobs with a command"),
        (("c", "* * * * *", "-f", "nowhere.yaml"), "nowhere.yaml can't be read: No such file"),
        (("c", "* * * * *", "-f", "two.yaml"), "a cron must have 1 manifest, got 2"),
        (("c", "* * * * *", "-f", "wrong.yaml"), "wrong.yaml:2: nothing: is no field"),
        (("c", "* * * * *", "-f", "once.yaml"), "run_at: is for one job only"),
        (("c", "* * * *", "--kind", "a"), "it has 4 fields, not 5"),
        (("c", "every 4 beats", "--kind", "a"), "is no schedule; write every N bars, such as every 4 bars"),
        (("c", "every 0 bars", "--kind", "a"), "1 to 10000 bars, got 0; write every N bars, such as"),
        (("c", "61 * * * *", "--kind", "a"), "'61' is no minute"),
        (("c", "@often", "--kind", "a"), "'@often' is no schedule"),
        (("c", "* * * * *", "--kind", "a", "--timezone", "Nowhere/At_all"), "is no time zone"),
        (("c d", "* * * * *", "--kind", "a"), "and -, got 'c d'"),
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
    (tmp_path / "wrong.yaml").write_text("kind: a\nnothing: 1\n")
    (tmp_path / "once.yaml").write_text("kind: a\nrun_at: 2030-01-31T08:00:00Z\n")
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert app.run(["cron", "add", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, fault in shown.err, shown.err.count("\n")) == ("", True, 1), shown.err


@pytest.mark.parametrize("command", ["add c @daily --kind a", "list", "remove c"])
def test_on_the_memory_home_nothing_comes_again(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_wrong_usage(f"cron {command}", "needs a mesh, and", capsys)
