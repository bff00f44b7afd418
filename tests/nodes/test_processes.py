"""Processes, identified by number and start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vox_mesh.errors import BadValue
from vox_mesh.nodes.processes import is_gone, process_of

_SHOW = "from vox_mesh.nodes.processes import calling_process; print(calling_process())"


def test_a_process_is_gone_when_it_has_ended_and_its_number_may_be_used_again() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = process_of(child.pid)
        assert not is_gone(process)
        assert is_gone(process._replace(started=process.started + 1)), "the number of an earlier process"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(process), "it has ended, though its parent does not know yet"
    assert is_gone(process)
    with pytest.raises(BadValue, match="running one of this user"):
        process_of(process.pid)


def test_what_can_not_be_seen_counts_as_running() -> None:
    own = process_of(os.getpid())
    for other in (own._replace(host="elsewhere", started=0), own._replace(pid=0), own._replace(pid=2**62)):
        assert not is_gone(other)


@pytest.mark.parametrize("shell", ["{}", "{}; true", "timeout 60 sh -c '{}; true'; true"])
def test_a_command_works_for_the_nearest_process_that_outlives_it(shell: str) -> None:
    line = shell.format(f'"{sys.executable}" -c "{_SHOW}"')
    assert int(subprocess.check_output(["sh", "-c", line])) == os.getpid()
