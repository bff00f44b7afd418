"""`vox-mesh lock`: locks as the command line takes, shows and breaks them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from tests.cli.node.test_nodes import interrupted, line_of
from tools.forked import Process
from tools.sqld import Server, free_port

_KEY: Final = "file:src/lib.rs"
_PATIENCE_S: Final = 60.0
_COMMANDS: Final = (
    *(
        "lock acquire task:k",
        "lock renew task:k --token 1",
        "lock release task:k --token 1",
        "lock list",
        "lock list --watch",
    ),
    *("lock sweep", "lock break task:k --reason r", "lock run task:k -- touch started"),
)


@pytest.fixture
def coder(vox: VoxCommand) -> VoxCommand:
    """The commands of an agent."""
    return vox.having(VOX_AGENT_ID="coder")


def shown(process: Process) -> Any:
    """The next document that a watch prints."""
    return json.loads(line_of(process))


def test_a_lock_is_acquired_renewed_and_released_by_its_token_alone(coder: VoxCommand) -> None:
    held = coder("lock", "acquire", _KEY, "--json").document
    names = ["lock_key", "fence_token", "holder_node", "holder_agent", "is_shared", "expires_at"]
    assert [*held] == [*names, "is_renewed"]
    assert not held.pop("is_renewed")
    assert (held["lock_key"], held["holder_agent"], held["is_shared"]) == (_KEY, "coder", False)
    token = str(held["fence_token"])

    refused = coder("lock", "acquire", "file:src/**", "--agent", "tester")
    assert refused.code == 1
    assert f"{_KEY} is held by coder on {held['holder_node']}" in refused.error

    for verb in ("renew", "release"):
        wrong = coder("lock", verb, _KEY, "--token", str(held["fence_token"] + 1))
        assert (wrong.code, "is not held under token" in wrong.error) == (1, True)

    (listed,) = coder("lock", "list", "--json").document
    assert {name: listed[name] for name in held} == held
    renewed = coder("lock", "renew", _KEY, "--token", token, "--ttl", "2h", "--json").document
    assert renewed["expires_at"] > held["expires_at"]
    assert coder("lock", "renew", _KEY, "--token", token).code == 0
    (listed,) = coder("lock", "list", "--json").document
    assert listed["left_ms"] <= 600_000  # for its usual time, not for as long as it was held

    assert coder("lock", "release", _KEY, "--token", token).code == 0
    assert coder("lock", "release", _KEY, "--token", token).code == 1
    again = coder("lock", "acquire", _KEY, "--json").document
    assert again["fence_token"] > held["fence_token"]


def test_a_lock_that_the_agent_holds_is_renewed_and_released_without_its_token(coder: VoxCommand) -> None:
    held = coder("lock", "acquire", _KEY, "--json").document
    again = coder("lock", "acquire", _KEY, "--ttl", "20m", "--json").document
    assert (again["fence_token"], again["is_renewed"]) == (held["fence_token"], True)
    assert again["expires_at"] > held["expires_at"]
    fresh = coder("lock", "acquire", _KEY, "--fresh")
    assert (fresh.code, f"your own lock on {_KEY} is in the way" in fresh.error) == (1, True)
    assert coder("lock", "run", _KEY, "--", "true").code == 1, "it would release the lock at its end"
    other = coder("lock", "release", _KEY, "--agent", "tester")
    refusal = f"{_KEY} is not held by tester on {held['holder_node']}: held by coder; "
    assert (other.code, refusal in other.error) == (1, True)
    coder("lock", "acquire", "task:1", "--agent", "tester")
    coder("lock", "acquire", "task:2", "task:3")
    mine = coder("lock", "list", "--agent", "coder", "--json").document
    assert [each["lock_key"] for each in mine] == [_KEY, "task:2", "task:3"]
    assert coder("lock", "release", _KEY, "--json").document["fence_token"] == held["fence_token"]
    (released,) = coder("lock", "release", "--all", "--json").document
    assert released["lock_keys"] == ["task:2", "task:3"]
    assert coder("lock", "release", "--all", "--json").document == []
    assert [each["holder_agent"] for each in coder("lock", "list", "--json").document] == ["tester"]


def test_files_are_locked_for_ten_minutes_unless_that_is_said(coder: VoxCommand) -> None:
    coder("lock", "acquire", _KEY)
    coder("lock", "acquire", "task:1")
    coder("lock", "acquire", "task:2", "--ttl", "1m")
    left = {each["lock_key"]: each["left_ms"] for each in coder("lock", "list", "--json").document}
    assert 500_000 < left[_KEY] <= 600_000
    assert 240_000 < left["task:1"] <= 300_000
    assert left["task:2"] <= 60_000


def test_a_lock_may_be_until_the_phase_or_the_bar_ends(coder: VoxCommand) -> None:
    policy = coder.folder / "fast.yaml"
    policy.write_text("cluster_id: c\ninitial_bpm: 600\nbar_len_beats: 4\n")
    in_time = coder.having(VOX_MESH_TEMPO_POLICY=str(policy))
    assert in_time("lock", "acquire", _KEY, "--until", "bar").code == 0
    assert in_time("lock", "acquire", _KEY, "--until", "phase", "--wait", "30s").code == 0, "a bar is short"
    command = ("lock", "run", "task:k", "--wait", "30s", "--until", "bar", "--", "sleep", "600")
    assert (in_time(*command).code, coder("lock", "list", "--json").document) == (1, [])
    both = coder("lock", "acquire", _KEY, "--until", "bar", "--ttl", "5s")
    assert (both.code, "--ttl and --until" in both.err) == (2, True)


def test_several_keys_are_taken_together_and_shared(vox: VoxCommand) -> None:
    held = vox("lock", "acquire", "task:b", "task:a", "--shared", "--agent", "reader", "--json").document
    assert (held["lock_keys"], held["is_shared"]) == (["task:b", "task:a"], True)
    also = vox("lock", "acquire", "task:a", "--shared", "--agent", "other", "-v").out.splitlines()
    assert ["is_shared", "yes"] in [line.split() for line in also]
    refused = vox("lock", "acquire", "task:a", "task:c", "--agent", "writer", "--json")
    assert refused.code == 1
    assert [(each["lock_key"], each["holder_agent"]) for each in refused.document] == [
        ("task:a", "reader"),
        ("task:a", "other"),
    ]
    heading, *lines = (line.split() for line in vox("lock", "list").out.splitlines())
    assert heading == ["lock_key", "token", "node", "agent", "mode", "age", "expires", "in", "waiting"]
    assert sorted((line[0], line[3], line[4]) for line in lines) == [
        *(("task:a", "other", "shared"), ("task:a", "reader", "shared"), ("task:b", "reader", "shared")),
    ]
    assert vox("lock", "release", "task:a", "--token", str(held["fence_token"])).code == 0
    assert [each["holder_agent"] for each in vox("lock", "list", "--json").document] == ["other"]


def test_a_watch_tells_who_comes_waits_and_goes_and_ends_on_ctrl_c(coder: VoxCommand, server: Server) -> None:
    coder = coder.at(server)
    coder("db", "init")
    with (
        coder.running("lock", "list", "--watch", "--json") as watch,
        coder.running("lock", "list", "--watch") as plain,
    ):
        held = coder("lock", "acquire", "task:k", "--json").document
        first = shown(watch)
        assert (first["state"], first["fence_token"], first["waiting"]) == ("held", held["fence_token"], 0)
        assert line_of(plain).split()[1:3] == ["held", "task:k"]
        with coder.running(
            "lock", "acquire", "task:k", "--agent", "next", "--wait", "60s", "--json"
        ) as waiting:
            assert shown(watch)["waiting"] == 1
            assert coder("lock", "release", "task:k", "--token", str(held["fence_token"])).code == 0
            out, _ = waiting.communicate(timeout=_PATIENCE_S)
        handed_over = json.loads(out)
        assert handed_over["fence_token"] > held["fence_token"]
        over = shown(watch)
        assert (over["state"], over["holder_agent"]) == ("over", "coder")
        assert shown(watch)["holder_agent"] == "next"
        assert interrupted(watch)[0] == 130
        while "next" not in (line := line_of(plain)):
            assert line.split()[2] == "task:k"
        assert interrupted(plain)[0] == 130


def test_a_broken_lock_is_in_the_log_with_the_reason(coder: VoxCommand) -> None:
    held = coder("lock", "acquire", "task:k", "--json").document
    nobodys = coder("lock", "break", "task:other", "--reason", "why not")
    assert (nobodys.code, "lock on task:other not found" in nobodys.error) == (1, True)
    done = coder("lock", "break", "task:k", "--reason", "its agent hangs", "--json").document
    assert [each["fence_token"] for each in done["broken"]] == [held["fence_token"]]
    assert coder("lock", "list", "--json").document == []
    (entry,) = coder("oplog", "tail", "--kind", "BreakLock", "--json").document
    assert (entry["op_id"], entry["accepted"]) == (done["op_id"], True)
    assert "its agent hangs" in json.dumps(entry["payload"])
    assert coder("lock", "renew", "task:k", "--token", str(held["fence_token"])).code == 1
    assert coder("oplog", "verify").code == 0


def test_a_sweep_removes_what_has_expired_and_nothing_else(coder: VoxCommand) -> None:
    coder("lock", "acquire", "task:kept")
    coder("lock", "acquire", "task:short", "--ttl", "100ms")
    while len(coder("lock", "list", "--json").document) > 1:
        pass  # each look takes longer than it has left
    assert coder("lock", "sweep", "--json").document == {"swept": 1}
    assert coder("lock", "sweep").out == "swept  0\n"
    assert [each["lock_key"] for each in coder("lock", "list", "--json").document] == ["task:kept"]


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("lock acquire task:k --ttl soon", "'soon' is not a duration"),
        ("lock run task:k", "after `--`"),
        ("lock run -- touch started", "KEY"),
        ("lock release", "KEY or --all"),
        ("lock release task:k --all", "KEY or --all"),
        ("lock release task:k --token 1 --agent a", "--token can't be combined"),
        ("lock break task:k", "--reason"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(
    command: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(command, fault, capsys)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("lock run task:k -- touch started", "VOX_AGENT_ID"),
        ("lock release task:k", "pass --token N, or --agent NAME"),
        ("lock acquire task:k --agent a --ttl 30d", "ttl must be seconds"),
        ("lock acquire file:/etc/passwd --agent a", "path of a key must be relative"),
    ],
)
def test_what_can_not_be_locked_so_ends_with_2_and_says_why(
    vox: VoxCommand, command: str, fault: str
) -> None:
    ended = vox(*command.split())
    assert ended.code == 2
    assert fault in ended.error
    assert not (vox.folder / "started").exists()


async def _all_end(vox: VoxCommand, commands: tuple[str, ...], code: int, fault: str) -> None:
    """Run the commands side by side, and see how they end."""
    ended = await asyncio.gather(*(asyncio.to_thread(vox, *each.split()) for each in commands))
    for command, each in zip(commands, ended, strict=True):
        assert (each.code, fault in each.error) == (code, True), command
    assert not (vox.folder / "started").exists()


async def test_on_the_memory_home_a_lock_would_protect_nothing(memory: VoxCommand) -> None:
    await _all_end(memory.having(VOX_AGENT_ID="coder"), _COMMANDS, 2, "vox-mesh init")


async def test_with_the_database_away_nothing_is_started_and_it_ends_with_3(vox: VoxCommand) -> None:
    away = vox.having(VOX_AGENT_ID="coder", VOX_DB_URL=f"http://127.0.0.1:{free_port()}")
    await _all_end(away, _COMMANDS[-2:], 3, "can't be reached")
