"""`lock acquire --session`: the lock of a process, next to a real node."""

from __future__ import annotations

import subprocess

from tests.cli.conftest import VoxCommand


def test_a_session_lock_ends_with_its_process(vox: VoxCommand) -> None:
    alone = vox("lock", "acquire", "task:1", "--agent", "ann", "--session")
    assert (alone.code, "start one with `vox-mesh up`" in alone.error) == (2, True)
    assert vox("lock", "list", "--json").document == []
    with vox.running("up", "--no-http") as node, subprocess.Popen(["sleep", "600"]) as agent:
        command = ("lock", "acquire", "task:1", "--agent", "ann", "--session-pid", str(agent.pid), "--json")
        while (held := vox(*command)).code == 2:
            assert node.poll() is None, "it announces itself once it runs"
        assert held.document["session_pid"] == agent.pid
        (listed,) = vox("lock", "list", "--json").document
        assert (listed["session"], listed["session_pid"]) == ("process", agent.pid)
        assert f"process {agent.pid}" in vox("lock", "list").out
        assert vox("lock", "acquire", "task:1", "--agent", "bob").code == 1
        agent.kill()
        agent.wait()
        taken = vox("lock", "acquire", "task:1", "--agent", "bob", "--json").document
        assert taken["fence_token"] > held.document["fence_token"]
    absent = vox("lock", "acquire", "task:1", "--agent", "ann", "--session-pid", str(agent.pid))
    assert (absent.code, "running one of this user" in absent.error) == (2, True)
    both = vox("lock", "acquire", "task:1", "--agent", "ann", "--session", "--until", "bar")
    assert (both.code, "--session can't be combined" in both.err) == (2, True)


def test_heartbeats_of_an_agent_renew_its_locks_without_a_node(vox: VoxCommand) -> None:
    assert "session" not in vox("lock", "acquire", "task:2", "--agent", "bob").out
    assert "session" not in vox("lock", "list").out
    held = vox("lock", "acquire", "task:1", "--agent", "ann", "--heartbeats", "--json").document
    assert held["session"] == "heartbeats"
    assert [line.split()[-1] for line in vox("lock", "list").out.splitlines()] == [
        "session",
        "heartbeats",
        "-",
    ]
    vox("lock", "renew", "task:1", "--token", str(held["fence_token"]), "--ttl", "5s")
    beat = vox("agents", "heartbeat", "ann", "--json").document
    assert [each["lock_keys"] for each in beat["locks"]] == [["task:1"]]
    (listed,) = vox("lock", "list", "--agent", "ann", "--json").document
    assert listed["left_ms"] > 5_000
    assert "task:1" in vox("agents", "heartbeat", "ann").out
    assert vox("agents", "show", "ann", "--json").document["last_action"] in ("lock", "heartbeat")
    nameless = vox("agents", "heartbeat")
    assert (nameless.code, "pass the agent's NAME or set VOX_AGENT_ID" in nameless.error) == (2, True)
    both = vox("lock", "acquire", "task:1", "--agent", "ann", "--heartbeats", "--session")
    assert (both.code, "--heartbeats can't be combined" in both.err) == (2, True)
