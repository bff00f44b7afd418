"""What a person sees first: the help in groups, one screen of status, sources of settings, colours."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.database.test_oplog import database
from tests.cli.terminals import terminal
from vox_mesh.cli import app
from vox_mesh.cli.sections import SECTIONS
from vox_mesh.cli.support.style import fitting_widths


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands in a mesh made by `init`."""
    made = VoxCommand(tmp_path)
    assert made("init").code == 0
    return made


def test_every_command_is_in_one_section() -> None:
    listed = list(chain.from_iterable(SECTIONS.values()))
    assert len(set(listed)) == len(listed)
    assert set(app._COMMANDS) <= set(listed)


def test_help_takes_the_path_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["help", "lock", "acquire"]) == 0
    assert "Usage: vox-mesh lock acquire [OPTIONS] KEY..." in capsys.readouterr().out
    assert app.run(["help"]) == 0
    assert "Everyday:" in capsys.readouterr().out
    assert app.run(["help", "lock", "aquire"]) == 2
    assert "acquire" in capsys.readouterr().err
    assert app.run(["help", "send", "it"]) == 2
    assert "`vox-mesh send` has no commands" in capsys.readouterr().err


def test_the_status_fits_one_screen_and_names_problems(vox: VoxCommand) -> None:
    assert vox("lock", "acquire", "task:a", "--agent", "ada").code == 0
    assert vox("send", "ada", "hello", "--from", "bob").code == 0
    assert vox("job", "schedule", "--kind", "notes.extract").code == 0
    assert vox("job", "schedule", "--", "true").code == 0
    ended = vox.having(VOX_AGENT_ID="ada", VOX_MESH_TICKS="1s")("status")
    assert ended.code == 0
    assert len(ended.out.splitlines()) <= 24
    for piece in (
        f"{vox.folder / '.vox'}, from the current folder",
        "2: ada (alive), bob (alive)",
        "1 held, 0 waiting",
        "2 pending",
        "1 unread, 1 for ada",
        "1 pending jobs and no node to run them\n    -> start one: `vox-mesh up --handlers MODULE:NAME`",
        "1 pending exec jobs and no worker to run them\n    -> start one: `vox-mesh up --worker-exec`",
        "did you mean VOX_MESH_TICK instead of VOX_MESH_TICKS?",
    ):
        assert piece in ended.out, ended.out
    document = vox("status", "--json").document
    assert document["locks"] == {"held": 1, "waiting": 0}
    assert [each["agent_id"] for each in document["agents"]] == ["ada", "bob"]


def test_the_status_counts_the_locks_that_are_listed(vox: VoxCommand) -> None:
    for key in ("task:a", "task:b", "task:c"):
        assert vox("lock", "acquire", key, "--agent", "ada").code == 0
    with database(vox) as connection:
        connection.execute("UPDATE distributed_locks SET lock_key = 'mesh:b' WHERE lock_key = 'task:b'")
        connection.execute("UPDATE distributed_locks SET expires_at = acquired_at WHERE lock_key = 'task:c'")
    assert [each["lock_key"] for each in vox("lock", "list", "--json").document] == ["task:a"]
    assert vox("status", "--json").document["locks"] == {"held": 1, "waiting": 0}
    assert "locks: 1 held" in vox("top", "--once").out


def test_without_a_mesh_the_status_says_how_to_get_one(memory: VoxCommand) -> None:
    ended = memory("status")
    assert (ended.code, "run `vox-mesh init`" in ended.out) == (1, True)


def test_settings_are_shown_with_their_sources_and_without_secrets(vox: VoxCommand) -> None:
    (vox.folder / ".env").write_text("VOX_MESH_TICK=2s\n")
    shown = vox.having(VOX_DB_TOKEN="eyJsecret", VOX_AGENT_ID="ada")("config", "show", "--json")
    assert "eyJsecret" not in shown.out
    found = {each["setting"]: (each["value"], each["from"]) for each in shown.document}
    assert found["VOX_DB_TOKEN"] == ("***", "the environment")
    assert found["VOX_AGENT_ID"] == ("ada", "the environment")
    assert found["VOX_MESH_TICK"] == (2.0, str(vox.folder / ".env"))
    assert found["VOX_MESH_ENABLED"] == (True, "vox-mesh init")
    assert "VOX_MESH_HTTP" not in found
    everything = vox("config", "show", "--all", "--json").document
    assert {"setting": "VOX_MESH_HTTP", "value": True, "from": "default"} in everything


def test_with_json_an_error_is_a_document_with_its_code_and_hint(vox: VoxCommand) -> None:
    ended = vox("lock", "acquire", "task:a", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert json.loads(ended.err) == {
        "code": "bad_settings",
        "message": "no agent given",
        "hint": "pass --agent NAME or set VOX_AGENT_ID",
        "retryable": False,
        "exit_code": 2,
    }
    assert json.loads(vox("lokc", "--json").err)["code"] == "usage"
    assert vox("lock", "run", "task:a", "--", "echo", "--json").err.startswith("vox-mesh: ")


def test_colours_are_for_terminals_without_no_color(vox: VoxCommand) -> None:
    coloured = vox.having(TERM="xterm")
    with terminal(coloured, "doctor") as shown:
        assert b"\x1b[32mok" in shown.shows("all values valid")
        shown.ended()
    with terminal(coloured.having(NO_COLOR="1"), "doctor") as shown:
        assert b"\x1b[" not in shown.shows("all values valid")
        shown.ended()
    assert "\x1b[" not in coloured("doctor").out


def test_a_table_fits_the_terminal_and_never_cuts_an_identifier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["job_id", "kind", "reason"]
    assert fitting_widths(names, [26, 20, 90]) == [26, 20, 90]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert fitting_widths(names, [26, 20, 90]) == [26, 20, 30]
    assert fitting_widths(names, [70, 20, 90]) == [70, 8, 8]
