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
        assert vox("lock", "acquire", "task:1", "--agent", "bob").code == 1
        agent.kill()
        agent.wait()
        taken = vox("lock", "acquire", "task:1", "--agent", "bob", "--json").document
        assert taken["fence_token"] > held.document["fence_token"]
    absent = vox("lock", "acquire", "task:1", "--agent", "ann", "--session-pid", str(agent.pid))
    assert (absent.code, "running one of this user" in absent.error) == (2, True)
    both = vox("lock", "acquire", "task:1", "--agent", "ann", "--session", "--until", "bar")
    assert (both.code, "--session can't be combined" in both.err) == (2, True)
