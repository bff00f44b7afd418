"""`vox-mesh top` as a process: in a real terminal, in a dumb one, and in none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.terminals import terminal
from tests.support.messages.messaging import write
from vox_mesh import Mesh, load_settings
from vox_mesh.cli.support.exit_codes import ExitCode

_PATIENCE_S: Final = 60.0
_ALTERNATE: Final = b"\x1b[?1049h"
_BACK: Final = b"\x1b[?1049l"
_CURSOR: Final = b"\x1b[?25h"
_COLOURED: Final = re.compile(rb"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-8][;m]")
_ESCAPES: Final = re.compile(r"\x1b\[[?>=<]?[\d;]*[A-Za-z]")
_EVIL: Final = "task:\x1b]0;pwned\x07[bold red]x"
_BROKEN: Final = """
import sys
from vox_mesh.cli.app import run
from vox_mesh.cli.top.app import TopApp

def explain(self):
    secret = "a value no one is to see"
    return 1 / 0

TopApp.action_explain = explain
sys.exit(run(["top"]))
"""


@pytest.fixture
def busy(vox: VoxCommand) -> VoxCommand:
    """Commands on a mesh with a job and a lock whose name means harm."""
    asyncio.run(_prepared(vox))
    return vox


async def _prepared(vox: VoxCommand) -> None:
    database = vox.folder / ".vox/cache/db/local.db"
    settings = load_settings(_env_file=None, enabled=True, home_dir=vox.folder / ".vox", db_path=database)
    async with Mesh.open_command(settings) as mesh:
        await mesh.jobs.schedule("site.deploy")
        await mesh.locks.acquire("task:1", agent="coder")
        # None of ours writes such a name, but every client with the database's token can.
        await write(mesh, "UPDATE distributed_locks SET lock_key = ?3 WHERE ?1 <> 'x' AND ?2 <> ''", _EVIL)


def test_it_draws_and_reacts_and_leaves_the_terminal_as_it_was(busy: VoxCommand) -> None:
    with terminal(busy, "top") as screen:
        drawn = screen.shows("Nodes", "1 pending", "site.deploy", "1 held", "task:?]0;pwned?[bold red]x")
        assert _ALTERNATE in drawn
        assert b"\x1b]0;" not in drawn
        assert b"38;2;" not in drawn  # sixteen colours are enough
        assert screen.modes_now != screen.modes
        screen.type("?")
        screen.shows("break the lock; asks for a reason")
        screen.type("\x1b")
        screen.shows("site.deploy")
        screen.type("q")
        assert screen.ended() == 0
        assert screen.modes_now == screen.modes
        assert _BACK in screen.shown
        assert _CURSOR in screen.shown


def test_it_draws_without_colours_where_none_are_wanted(busy: VoxCommand) -> None:
    with terminal(busy.having(NO_COLOR="1"), "top") as screen:
        everything = screen.shows("Nodes", "site.deploy", "1 held", " quit ")
        for keys, words in (
            ("?", "break the lock; asks for a reason"),
            ("\x1b", "1 pending"),
            ("a", "Abort job"),
            ("\x1b", "1 pending"),
            ("4", " break "),
            ("b", "Break the lock"),
        ):
            screen.type(keys)
            everything += screen.shows(words)
        screen.type("\x03")
        assert screen.ended() == 0
        assert not _COLOURED.search(everything + screen.shown)


def test_a_bug_is_one_line_and_its_exit_code_and_the_terminal_is_as_it_was(busy: VoxCommand) -> None:
    with terminal(busy, code=_BROKEN) as screen:
        screen.shows("site.deploy")
        screen.type("?")
        assert screen.ended() == ExitCode.BUG
        assert screen.modes_now == screen.modes
        said = screen.shows("as a bug\r\n").rpartition(_BACK)[2].decode()
        assert _ESCAPES.sub("", said).splitlines() == [
            "vox-mesh: internal error: ZeroDivisionError: division by zero; "
            "run it with VOX_DEBUG=1 and report the output as a bug"
        ]
        assert b"no one is to see" not in screen.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(busy: VoxCommand, number: int) -> None:
    with terminal(busy, "top", "--interval", "1s") as screen:
        screen.shows("site.deploy")
        os.kill(screen.pid, number)
        assert screen.ended() == 128 + number
        assert screen.modes_now == screen.modes
        assert _BACK in screen.shown


def test_ctrl_c_ends_it_also_in_a_dialog(busy: VoxCommand) -> None:
    with terminal(busy, "top") as screen:
        screen.shows("site.deploy")
        screen.type("a")
        screen.shows("Abort job")
        screen.type("\x03")
        assert screen.ended() == 0
        assert screen.modes_now == screen.modes


def test_it_ends_with_its_terminal(busy: VoxCommand) -> None:
    with terminal(busy, "top") as screen:
        screen.shows("site.deploy")
        screen.hang_up()
        assert screen.ended() == 128 + signal.SIGHUP


def test_a_dumb_terminal_is_given_text(busy: VoxCommand) -> None:
    with terminal(busy, "top", term="dumb") as screen:
        assert screen.ended() == 0
        screen.shows("jobs: 1 pending", "task:?]0;pwned?[bold red]x")
        assert b"\x1b" not in screen.shown


def test_without_a_terminal_it_is_one_look_as_text_or_as_a_document(busy: VoxCommand) -> None:
    reported = busy("top")
    assert (reported.code, reported.err) == (0, "")
    assert "jobs: 1 pending\n  job " in reported.out
    assert "locks: 1 held\n  key " in reported.out
    assert "conflicts: none\n" in reported.out
    assert "\x1b" not in reported.out
    document = busy("top", "--json").document
    assert [job["kind"] for job in document["jobs"]] == ["site.deploy"]
    assert [lock["lock_key"] for lock in document["locks"]] == [_EVIL]
    assert document["mail"] == {"unread": 0, "claimed": 0, "overdue": 0, "dead": 0}
    assert document["database"]["home"] == "file"


def test_nothing_that_draws_is_loaded_where_nothing_is_drawn(busy: VoxCommand) -> None:
    reported = busy("top", "--once", python=("-X", "importtime"))
    assert reported.code == 0
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in reported.err.splitlines()}
    assert "vox_mesh" in loaded
    assert not loaded & {"textual", "rich", "aiohttp"}


def test_it_needs_something_to_look_at(memory: VoxCommand) -> None:
    refused = memory("top")
    assert refused.code == 2
    assert "needs a mesh" in refused.error


def test_without_a_database_and_a_terminal_it_ends_as_commands_do(vox: VoxCommand) -> None:
    away = vox.having(VOX_DB_URL="http://127.0.0.1:1", VOX_DB_DEADLINE="1s")("top")
    assert away.code == 3
    assert away.error
