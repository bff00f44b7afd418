"""`vox-mesh conflicts`: the review of writes that lost a race, as the command line shows and settles it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.node.test_nodes import interrupted, line_of
from tests.support.oplog.rivals import MEMORIES, at, overtaken, row
from vox_mesh import ConflictRecorded, DeferToAgent, Mesh, Settings, Written, load_settings

_RED: Final = "\x1b[31m"
_CYAN: Final = "\x1b[36m"


def _settings(vox: VoxCommand) -> Settings:
    return load_settings(
        _env_file=None,
        enabled=True,
        home_dir=vox.folder / ".vox",
        db_path=vox.folder / ".vox/cache/db/local.db",
    )


def recorded(vox: VoxCommand, name: str, **right: Any) -> str:
    """Have a conflict recorded next to the commands; its id."""

    async def record() -> str:
        async with Mesh.open_command(_settings(vox)) as mesh:
            base, _ = await overtaken(mesh, name, **right)
            reported = await mesh.occ.write(
                MEMORIES,
                at(name),
                {"content": "le\x1b[2Jft"},
                base,
                strategy=DeferToAgent("judge"),
                agent="coder",
            )
            assert isinstance(reported, ConflictRecorded)
            return reported.conflict_id

    return asyncio.run(record())


def kept(vox: VoxCommand, name: str, **changes: Any) -> dict[str, Any]:
    """A memory in its current state; with `changes`, after they were written."""

    async def read() -> dict[str, Any]:
        async with Mesh.open_command(_settings(vox)) as mesh:
            now = await row(mesh, name)
            if changes:
                assert isinstance(await mesh.occ.write(MEMORIES, at(name), changes, now), Written)
            return await row(mesh, name)

    return asyncio.run(read())


def test_a_conflict_is_listed_shown_and_resolved_once(vox: VoxCommand) -> None:
    conflict_id = recorded(vox, "a", tags="right")
    (listed,) = vox("conflicts", "list", "--open", "--table", MEMORIES, "--json").document
    assert (listed["conflict_id"], listed["table_name"]) == (conflict_id, MEMORIES)
    assert (listed["row_key"], listed["state"], listed["deferred_to"]) == (at("a"), "open", "judge")
    assert (listed["left_agent"], listed["strategy"]) == ("coder", "DeferToAgent")
    assert (listed["base"]["content"], listed["left"]["content"]) == ("base", "le\x1b[2Jft")
    assert (listed["right"]["content"], listed["right"]["tags"]) == ("base", "right")
    assert vox("conflicts", "show", conflict_id.lower(), "--json").document == listed
    heading, line = vox("conflicts", "list").out.splitlines()
    assert heading.split()[:3] == ["conflict_id", "table_name", "row_key"]
    assert line.split()[0] == conflict_id
    judge = vox.having(VOX_AGENT_ID="judge")
    done = judge(
        "conflicts", "resolve", conflict_id, "--take", "merge", "--reason", "both", "--json"
    ).document
    assert (done["conflict_id"], done["resolution"]) == (conflict_id, "merge")
    now = kept(vox, "a")
    assert (now["content"], now["tags"], now["written_at"]) == ("le\x1b[2Jft", "right", done["written_at"])
    (entry,) = vox("oplog", "tail", "--kind", "ResolveConflict", "--json").document
    reported = json.loads(entry["payload"]) if isinstance(entry["payload"], str) else entry["payload"]
    assert (entry["op_id"], entry["accepted"]) == (done["op_id"], True)
    assert (reported["reason"], reported["who"]["agent"]) == ("both", "judge")
    again = vox("conflicts", "resolve", conflict_id, "--take", "left")
    assert (again.code, "was resolved (merge) by judge" in again.error) == (1, True)
    assert vox("conflicts", "list", "--open").out == "none\n"
    assert vox("oplog", "verify").code == 0


def test_a_row_that_has_moved_on_is_shown_and_can_then_be_decided_on(vox: VoxCommand) -> None:
    conflict_id = recorded(vox, "a")
    now = kept(vox, "a", tags="newer")
    refused = vox("conflicts", "resolve", conflict_id, "--value", '{"content": "mine"}')
    assert refused.code == 1
    assert '"tags":"newer"' in refused.error
    assert f"--onto '{now['written_at']}'" in refused.error
    assert kept(vox, "a") == now
    onto = ("--onto", now["written_at"])
    assert vox("conflicts", "resolve", conflict_id, "--value", '{"content": "mine"}', *onto).code == 0
    assert kept(vox, "a")["content"] == "mine"
    entries = vox("oplog", "tail", "--kind", "ResolveConflict", "--json").document
    assert [(each["accepted"], each["reason"]) for each in entries] == [(False, "row_moved"), (True, None)]


def _in_a_terminal(vox: VoxCommand, *arguments: str) -> str:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vox_mesh.cli", *arguments],
        cwd=vox.folder,
        env=vox.environment,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.PIPE,
    ):
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65_536)
            except OSError:  # the way in which Linux tells the end
                part = b""
            if not part:
                break
            shown += part
    os.close(leader)
    return shown.decode()


def test_fields_are_compared_in_colour_in_a_terminal_only(vox: VoxCommand) -> None:
    conflict_id = recorded(vox, "a", content="right", tags="right")
    shown = _in_a_terminal(vox, "conflicts", "show", conflict_id)
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert lines[f"{_RED}content"].split()[1:4] == ["both", '"base"', '"le\\u001b[2Jft"']
    assert lines[f"{_CYAN}tags"].split()[1:] == ["right", '"base"', '"base"', '"right"\x1b[0m']
    assert lines["importance"].split() == ["importance", "-", "1", "1", "1"]
    assert "\x1b[2J" not in shown
    plain = vox("conflicts", "show", conflict_id).out
    assert "\x1b" not in plain
    uncoloured = _in_a_terminal(vox.having(NO_COLOR="1"), "conflicts", "show", conflict_id)
    assert uncoloured.splitlines() == plain.splitlines()


def test_a_watch_tells_of_each_conflict_as_it_comes_and_goes(vox: VoxCommand) -> None:
    first = recorded(vox, "a")
    with vox.running("conflicts", "watch", "--json") as watch:
        reported = json.loads(line_of(watch))
        assert (reported["conflict_id"], reported["state"]) == (first, "open")
        second = recorded(vox, "b")
        assert json.loads(line_of(watch))["conflict_id"] == second
        assert vox("conflicts", "resolve", second, "--take", "right").code == 0
        reported = json.loads(line_of(watch))
        assert (reported["conflict_id"], reported["state"], reported["resolution"]) == (
            second,
            "resolved",
            "right",
        )
        code, err = interrupted(watch)
    assert (code, err.count("\n")) == (130, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        ("show 01", 1, "conflict 01 not found"),
        ("resolve 01", 2, "pass either --take or --value"),
        ("resolve 01 --value {", 2, "--value is not JSON"),
    ],
)
def test_what_can_not_be_done_is_one_line(vox: VoxCommand, arguments: str, code: int, reported: str) -> None:
    ended = vox("conflicts", *arguments.split())
    assert ended.code == code
    assert reported in ended.error


@pytest.mark.parametrize("command", ["list", "resolve 01 --take left"])
def test_on_the_memory_home_there_is_nothing_to_review(memory: VoxCommand, command: str) -> None:
    ended = memory("conflicts", *command.split())
    assert ended.code == 2
    assert "needs a mesh" in ended.error
