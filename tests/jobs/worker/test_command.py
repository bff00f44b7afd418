"""Command jobs: a program has what its job says and nothing else, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import termios
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.locks.lock_runs import FAMILY
from tests.support.store.leftovers import assert_nothing_left, descriptors
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.command import Command, CommandResult, run_command
from vox_mesh.jobs.exec.policy import SEARCH_PATH, CommandRefused, ExecPolicy
from vox_mesh.jobs.exec.process_group import members

_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01
_ANY: Final = ExecPolicy()
_TOLD: Final = {
    "VOX_JOB_ID": "ab" * 32,
    "VOX_JOB_ULID": "01JOB",
    "VOX_JOB_ATTEMPT": "2",
    "VOX_CLAIM_TOKEN": "7",
}
_OPEN_FILES: Final = """
import os
def is_open(number):
    try: os.fstat(number)
    except OSError: return False
    return True
print([number for number in range(1024) if is_open(number)], flush=True)
"""
_PROGRAM: Final = """
import asyncio, os, sys
from vox_mesh.jobs.exec.command import Command, run_command
from vox_mesh.jobs.exec.policy import ExecPolicy
command = Command(tuple(sys.argv[1:]), "id", "ulid", 1, 1)
result = asyncio.run(run_command(command, policy=ExecPolicy(), on_output=lambda _, data: os.write(1, data)))
print(result.line)
"""
"""A process of its own that runs the command of its arguments."""


def command_of(*argv: str, **changes: Any) -> Command:
    """A command as a job has it."""
    claim: dict[str, Any] = {"job_id": "ab" * 32, "ulid": "01JOB", "attempt": 2, "claim_token": 7}
    return Command(argv, **claim | changes)


def shell(script: str, **changes: Any) -> Command:
    """A shell command as a job has it."""
    return command_of("/bin/sh", "-c", script, **changes)


def python(script: str, *args: str, **changes: Any) -> Command:
    """A Python program as a job has it."""
    return command_of(sys.executable, "-I", "-S", "-c", script, *args, **changes)


class Heard:
    """What a command has said so far."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = defaultdict(bytes)
        self.largest = 0
        self._news = asyncio.Event()

    def __call__(self, stream: str, chunk: bytes) -> None:
        """Listen."""
        self.said[stream] += chunk
        self.largest = max(self.largest, len(chunk))
        self._news.set()

    @property
    def text(self) -> str:
        """All of its stdout."""
        return self.said["stdout"].decode()

    async def line(self, running: asyncio.Task[CommandResult]) -> str:
        """Wait for a whole line on stdout."""
        async with asyncio.timeout(_PATIENCE_S):
            while "\n" not in self.text:
                assert not running.done(), running.result()
                self._news.clear()
                await self._news.wait()
        return self.text.splitlines()[0]


class Kept(list[bytes]):
    """A sink that keeps what it is given."""

    def write(self, data: bytes) -> None:
        """Take a piece."""
        self.append(data)


async def run(command: Command, policy: ExecPolicy = _ANY, **options: Any) -> tuple[CommandResult, Heard]:
    """Run a command to its end; how that was, and what it said."""
    heard = Heard()
    async with asyncio.timeout(_PATIENCE_S):
        return await run_command(command, policy=policy, on_output=heard, **options), heard


def begin(command: Command, heard: Heard, **options: Any) -> asyncio.Task[CommandResult]:
    """Have a command run."""
    return asyncio.create_task(run_command(command, policy=_ANY, on_output=heard, **options))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what becomes of processes that are not ours."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(_LOOK_S)


def exists(path: Path) -> bool:
    """Whether there is such a file or folder."""
    return path.exists()


# --- what it says --------------------------------------------------------------------------------


async def test_both_streams_come_whole_and_in_order_and_nothing_is_left_here() -> None:
    before = descriptors()
    out, err = Kept(), Kept()
    script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; exit 3"
    result, heard = await run(shell(script), stdout=out, stderr=err)
    assert result == CommandResult(exit_code=3)
    assert (result.is_success, result.line) == (False, "ended with exit code 3")
    for name, sink in (("out", out), ("err", err)):
        said = "".join(f"{name} {i}\n" for i in range(1, 6)).encode()
        assert (heard.said[f"std{name}"], b"".join(sink)) == (said, said)
    await assert_nothing_left(before)


async def test_much_output_comes_through_in_small_pieces() -> None:
    script = "import os\nfor i in range(640): os.write(1 + i % 2, b'%08d' % i * 1024)"
    out = Kept()
    result, heard = await run(python(script), stdout=out)
    assert result.is_success
    for name, first in (("stdout", 0), ("stderr", 1)):
        assert heard.said[name] == b"".join(b"%08d" % i * 1_024 for i in range(first, 640, 2))
    assert b"".join(out) == heard.said["stdout"]
    assert heard.largest <= 65_536


async def test_a_sink_that_takes_its_time_does_not_keep_the_loop_from_turning() -> None:
    loop, asked, may_go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Slow(Kept):
        def write(self, data: bytes) -> None:
            loop.call_soon_threadsafe(asked.set)
            assert may_go_on.wait(_PATIENCE_S)
            super().write(data)

    out, heard = Slow(), Heard()
    running = begin(shell("echo words"), heard, stdout=out)
    async with asyncio.timeout(_PATIENCE_S / 2):
        await asked.wait()
        may_go_on.set()
        assert (await running).is_success
    assert b"".join(out) == b"words\n"


async def test_a_sink_that_fails_stops_the_command_and_is_heard_of() -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    heard = Heard()
    with pytest.raises(OSError, match="No space left"):
        await run_command(shell("echo $$ >&2; exec yes"), policy=_ANY, on_output=heard, stdout=Full())
    with pytest.raises(ProcessLookupError):
        os.kill(int(heard.said["stderr"]), 0)


async def test_who_left_the_group_can_not_hold_the_result_up_even_by_going_on_to_write() -> None:
    script = """
import os, subprocess
apart = subprocess.Popen(["/usr/bin/yes"], start_new_session=True)
os.write(2, b"%d" % apart.pid)
"""
    heard = Heard()

    def listen(stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            heard(stream, chunk)

    try:
        async with asyncio.timeout(_PATIENCE_S):
            assert (await run_command(python(script), policy=_ANY, on_output=listen)).is_success
    finally:
        with suppress(ProcessLookupError):  # no one reads what it writes any more
            os.kill(int(heard.said["stderr"]), signal.SIGKILL)


# --- what it has ---------------------------------------------------------------------------------


async def test_the_environment_is_what_is_promised_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VOX_DB_TOKEN", "secret")
    env = {"GREETING": "hello\nworld", "VOX_JOB_ID": "another", "LANG": "de_DE"}
    result, heard = await run(command_of("env", "-0", env=env, cwd=str(tmp_path)))
    assert result.is_success
    got = dict(each.split("=", 1) for each in heard.text.split("\0") if each)
    base = {"PATH": SEARCH_PATH, "HOME": str(Path.home()), "LANG": "de_DE", "GREETING": "hello\nworld"}
    assert got == base | _TOLD


@contextmanager
def _typed(words: bytes) -> Iterator[None]:
    """Have words on our stdin."""
    before, (theirs, ours) = os.dup(0), os.pipe()
    os.write(ours, words)
    os.dup2(theirs, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for number in (before, theirs, ours):
            os.close(number)


async def test_without_a_folder_it_has_one_of_its_own_which_is_removed() -> None:
    script = 'pwd -P; umask; mkdir -p a/b; echo x >a/b/c; chmod 0 a/b/c a/b; cd "$HOME" && pwd -P; cat; ls'
    with _typed(b"this is not for it\n"):
        result, heard = await run(shell(script))
    own, umask, home, *rest = heard.text.splitlines()
    assert (result, umask, home, rest) == (CommandResult(exit_code=0), "0077", own, ["a"])
    assert not exists(Path(own))


async def test_it_runs_in_the_folder_that_its_job_names(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\npwd -P; : >made")
    (tmp_path / "tool").chmod(0o755)
    here = str(Path.cwd())  # of a test that is its folder, by its own name
    for changes in ({}, {"env": {"PATH": "."}}):
        name = "tool" if changes else "./tool"
        result, heard = await run(command_of(name, cwd=str(tmp_path), **changes))
        assert (result.is_success, heard.text.strip()) == (True, here)
    assert exists(tmp_path / "made")


async def test_commands_that_run_together_have_no_files_of_each_others_or_ours() -> None:
    ours = os.pipe()
    for end in ours:
        os.set_inheritable(end, True)
    many = [Heard() for _ in range(6)]
    first, last = Heard(), Heard()
    try:
        waiting = begin(shell("echo begun; exec sleep 1000"), first)
        await first.line(waiting)
        running = [begin(python(_OPEN_FILES + "import time; time.sleep(1000)"), each) for each in many]
        for each, task in zip(many, running, strict=True):
            assert await each.line(task) == "[0, 1, 2]"
        async with asyncio.timeout(_PATIENCE_S):
            assert (await begin(shell("echo done"), last)).is_success
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        assert {type(each) for each in await asyncio.gather(*running, return_exceptions=True)} == {
            asyncio.CancelledError
        }
    finally:
        for end in ours:
            os.close(end)


@contextmanager
def _deaf(ignored: signal.Signals, blocked: signal.Signals) -> Iterator[None]:
    before = signal.signal(ignored, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(ignored, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT])
async def test_a_signal_does_to_it_what_it_does_by_default(number: signal.Signals) -> None:
    ignored = signal.SIGHUP if number == signal.SIGPIPE else number
    with _deaf(ignored, signal.SIGTERM):
        result, _ = await run(shell(f"kill -{number.name[3:]} $$; exit 9"))
    assert result == CommandResult(signal=number)
    assert result.line == f"ended with {number.name}"


# --- how it ends ---------------------------------------------------------------------------------


async def test_its_timeout_stops_its_grandchildren_too() -> None:
    heard = Heard()
    running = begin(shell(FAMILY[-1], timeout_s=1), heard)
    command, _ = map(int, (await heard.line(running)).split())
    group = os.getpgid(command)
    async with asyncio.timeout(_PATIENCE_S):
        result = await running
    assert result == CommandResult(signal=signal.SIGTERM, timed_out=True)
    assert (result.is_success, result.line) == (False, "stopped by its timeout, with SIGTERM")
    assert members(group) == set()


async def test_one_that_ends_well_when_its_time_is_over_was_late_all_the_same() -> None:
    result, heard = await run(shell("trap 'echo bye; exit 0' TERM; sleep 1000 & wait", timeout_s=0.5))
    assert result == CommandResult(exit_code=0, timed_out=True)
    assert (result.is_success, heard.text) == (False, "bye\n")


async def test_cancelled_it_leaves_no_process_and_no_folder() -> None:
    before = descriptors()
    heard = Heard()
    running = begin(shell(f"trap 'echo bye' TERM; echo $PWD; {FAMILY[-1]}; sleep 0.05"), heard)
    folder = Path(await heard.line(running))
    await until(lambda: heard.text.count("\n") == 2)
    group = os.getpgid(int(heard.text.split()[1]))
    assert exists(folder)
    assert len(members(group)) == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert members(group) == set()
    assert not exists(folder)
    assert heard.text.endswith("bye\n")  # what it said when it was asked to end
    await assert_nothing_left(before)


async def test_cancelled_at_any_moment_of_its_start_it_leaves_nothing() -> None:
    before = descriptors()
    for turns in range(12):
        heard = Heard()
        running = begin(shell("echo $$; exec sleep 1000"), heard)
        for _ in range(turns):
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        if heard.text:
            with pytest.raises(ProcessLookupError):
                os.kill(int(heard.text), 0)
    await assert_nothing_left(before)


async def test_one_that_does_not_listen_is_killed_when_its_grace_is_over() -> None:
    heard = Heard()
    running = begin(shell("trap '' TERM; sleep 1000 & echo $$; wait; sleep 1000"), heard, grace_s=0.2)
    group = os.getpgid(int(await heard.line(running)))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert members(group) == set()


async def test_what_it_leaves_behind_ends_with_it_and_is_not_its_timeout() -> None:
    stubborn = "trap '' TERM; while :; do sleep 1000; done"
    heard = Heard()
    running = begin(shell(f"({stubborn}) & echo $!; exit 0", timeout_s=1), heard, grace_s=1.3)
    group = os.getpgid(int(await heard.line(running)))
    async with asyncio.timeout(_PATIENCE_S):
        assert await running == CommandResult(exit_code=0)
    assert members(group) == set()


async def test_what_it_leaves_behind_is_asked_to_end() -> None:
    polite = "(trap 'echo bye; exit' TERM; echo >ready; sleep 1000 & wait)"
    result, heard = await run(shell(f"mkfifo ready; {polite} & read -r _ <ready; exit 0"))
    assert (result, heard.text) == (CommandResult(exit_code=0), "bye\n")


@contextmanager
def _killed(process: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()


async def test_kill_9_of_the_worker_leaves_no_process_of_its_commands(tmp_path: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, *("/bin/sh", "-c"), FAMILY[-1]),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # no one is left to remove its folder
    )
    with _killed(worker):
        assert worker.stdout is not None
        async with asyncio.timeout(_PATIENCE_S):
            command, grandchild = map(int, (await worker.stdout.readline()).split())
        group = os.getpgid(command)
        assert members(group) == {group, command, grandchild}
        worker.kill()
        await until(lambda: not members(group))
        await worker.wait()


async def test_one_that_asks_for_the_terminal_does_not_wait_forever() -> None:
    ours, theirs = pty.openpty()
    in_terminal = f"import fcntl; fcntl.ioctl(0, {termios.TIOCSCTTY}, 0)\n{_PROGRAM}"
    try:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", in_terminal, *("/bin/sh", "-c"), "read -r line </dev/tty"),
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        with _killed(worker):
            async with asyncio.timeout(_PATIENCE_S):
                reported, _ = await worker.communicate()
        assert reported == b"ended with SIGKILL\n"
    finally:
        os.close(ours)
        os.close(theirs)


# --- what can't be run ---------------------------------------------------------------------------


async def test_what_can_not_be_run_is_reported_on_a_line(tmp_path: Path) -> None:
    plain, strange = tmp_path / "plain", tmp_path / "strange"
    for file, mode in ((plain, 0o644), (strange, 0o755)):
        file.write_bytes(b"\0no program")
        file.chmod(mode)
    before = descriptors()
    cases = [
        (command_of(), "nothing to run"),
        (command_of("no-such-program"), f"no such program in {SEARCH_PATH}"),
        (command_of(""), "no such program"),
        (command_of("/no/such/program"), "'/no/such/program': there is no such program"),
        (command_of(str(plain)), "may not be executed"),
        (command_of(str(tmp_path)), "no such program"),
        (command_of(str(strange)), "Exec format error"),
        (command_of("true", "a\0b"), "null byte"),
        (command_of("true", "x" * 4_000_000), "too long"),
        (command_of("true", env={"A=B": "c"}), "environment variable"),
        (command_of("true", cwd=str(tmp_path / "none")), "does not exist"),
        (command_of("true", cwd=str(plain)), "is not a folder"),
        (command_of("true", cwd="a\0b"), "cwd"),
        (command_of("true", cwd="here"), "this worker has no folder for relative paths"),
    ]
    for command, words in cases:
        result, heard = await run(command)
        assert (result.exit_code, result.signal, result.timed_out, heard.said) == (None, None, False, {})
        assert result.problem is not None
        assert words in result.problem
        assert "\n" not in result.line
    await assert_nothing_left(before)


async def test_a_relative_folder_is_below_that_of_the_worker_and_never_outside(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (own / "link").symlink_to(tmp_path / "outside")
    policy = ExecPolicy(folder=own)
    result, heard = await run(command_of("pwd", cwd="a/b"), policy)
    assert (result.exit_code, heard.text.strip()) == (0, str(own / "a" / "b"))
    for cwd in ("../outside", "a/../../outside", "link"):
        result, _ = await run(command_of("pwd", cwd=cwd), policy)
        assert "it leads out of the worker's folder" in str(result.problem)


# --- what may not be run -------------------------------------------------------------------------


async def test_an_allow_list_lets_nothing_else_through_by_whatever_name(tmp_path: Path) -> None:
    real, evil = tmp_path / "real", tmp_path / "evil"
    for folder in (real, evil):
        folder.mkdir()
        (folder / "tool").write_text(f'#!/bin/sh\necho {folder.name} "$0"')
        (folder / "tool").chmod(0o755)
    (evil / "link").symlink_to(real / "tool")
    (real / "away").symlink_to(evil / "tool")
    (evil / "true").symlink_to("/bin/sh")
    policy = ExecPolicy.parsed(f"true, {real}/tool,{real}/none")

    for allowed in (
        command_of("true"),
        command_of(str(real / "tool")),
        command_of(str(evil / "link")),
        command_of("../real/tool", cwd=str(evil)),
    ):
        result, heard = await run(allowed, policy)
        assert result.is_success, allowed
        assert heard.text in ("", f"real {real}/tool\n")  # by its own name: what was checked is what is run

    for refused in (
        command_of("sh"),
        command_of(str(evil / "tool")),
        command_of("tool", env={"PATH": f"{real}:{evil}"}),
        command_of("./tool", cwd=str(evil)),
        command_of(str(real / "away")),
        command_of(str(evil / "true"), "-c", "echo no"),
        command_of("true", env={"PATH": str(evil)}),
        command_of("true", env={"LD_PRELOAD": "evil.so"}),
    ):
        with pytest.raises(CommandRefused) as error:
            await run(refused, policy)
        assert error.value.hint

    with pytest.raises(CommandRefused):
        await run(command_of("true"), ExecPolicy.parsed(" , "))
    assert (await run(command_of("true"), ExecPolicy.parsed("")))[0].is_success


async def test_a_file_that_is_many_programs_is_only_the_one_in_the_list(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.write_text("#!/bin/sh\n")
    box.chmod(0o755)
    for name in ("list", "shell"):
        (tmp_path / name).symlink_to(box)
    policy = ExecPolicy.parsed(str(tmp_path / "list"))
    assert (await run(command_of(str(tmp_path / "list")), policy))[0].is_success
    for name in ("shell", "box"):
        with pytest.raises(CommandRefused):
            await run(command_of(str(tmp_path / name)), policy)
    assert (await run(command_of(str(tmp_path / "shell")), ExecPolicy.parsed(str(box))))[0].is_success


def test_an_allow_list_with_a_path_that_depends_on_the_folder_is_refused() -> None:
    with pytest.raises(BadSettings, match="got 'bin/tool'"):
        ExecPolicy.parsed("true,bin/tool")
