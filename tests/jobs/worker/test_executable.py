"""The executable of a command: hashed once, within bounds, and only attested if it did not change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.jobs.worker.test_command import shell
from vox_mesh.jobs.exec.command import Command, run_command
from vox_mesh.jobs.exec.executable import ExecutableHashes
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.model.jobs.proof import hash_of


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that may be executed."""
    path = tmp_path / "tool"
    path.write_text('#!/bin/sh\neval "$1"\n')
    path.chmod(0o755)
    return path


async def attested(command: Command) -> list[str | None]:
    """The hashes that a command has reported."""
    reported: list[str | None] = []
    await run_command(command, policy=ExecPolicy(), on_executable=reported.append)
    return reported


def _content(path: Path) -> bytes:
    return path.read_bytes()


def later() -> int:
    """A time at which the files of a test are old."""
    return Path(__file__).stat().st_ctime_ns * 2


async def test_the_executable_that_ran_is_attested_and_a_changed_one_is_not(script: Path) -> None:
    def run(code: str) -> Command:
        return Command((str(script), code), "id", "ulid", 1, 1)

    expected = hash_of(_content(script))
    assert await attested(run("true")) == [expected]
    assert await attested(run("exit 3")) == [expected]
    assert await attested(run(f"touch -d @1 {script}")) == [None]
    assert await attested(run(f"cp {script} {script}.new; mv {script}.new {script}")) == [None]
    assert await attested(run(f"rm {script}")) == [None]


async def test_a_command_that_is_ended_or_not_found_reports_once() -> None:
    assert await attested(Command(("no-such-program",), "id", "ulid", 1, 1)) == [None]
    (ended,) = await attested(shell("sleep 60", timeout_s=0.01))
    assert ended == hash_of(_content(Path("/bin/sh")))


def test_a_file_is_read_once_until_it_changes(script: Path) -> None:
    hashes = ExecutableHashes(now_ns=later)
    first = hashes.read(script)
    assert first is not None
    times = script.stat().st_atime_ns
    os.utime(script, ns=(times, first.identity.mtime_ns))  # the same time, and another inode change
    second = hashes.read(script)
    assert second is not None
    assert second.hash == first.hash == hash_of(script.read_bytes())
    assert not first.is_unchanged()
    slow = ExecutableHashes(now_ns=later, max_s=0.0, monotonic=iter((0.0, 0.0, 0.0, 1.0)).__next__)
    assert slow.read(script) == second  # read within the limit
    assert slow.read(script) == second  # without another look at the clock: from the cache


def test_a_file_that_was_changed_just_now_is_read_again(script: Path) -> None:
    reads = iter(range(100))
    fresh = ExecutableHashes(
        now_ns=lambda: script.stat().st_ctime_ns + 1, monotonic=lambda: float(next(reads))
    )
    fresh.read(script)
    used = next(reads)
    fresh.read(script)
    assert next(reads) > used + 1


@pytest.mark.parametrize("limits", [{"max_bytes": 10}, {"max_s": -1.0}])
def test_hashing_is_bounded(script: Path, limits: dict[str, float]) -> None:
    assert ExecutableHashes(**limits).read(script) is None  # type: ignore[arg-type]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "missing"):
        assert ExecutableHashes().read(path) is None
