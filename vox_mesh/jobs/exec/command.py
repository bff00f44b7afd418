"""Command jobs: run a program with only the arguments and environment that its job gives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.executable import Executable
from vox_mesh.jobs.exec.output_stream import OutputStream, PipeFailed
from vox_mesh.jobs.exec.policy import CommandRefused, ExecPolicy, find_program
from vox_mesh.jobs.exec.process_group import GRACE_S, ProcessGroup, Start
from vox_mesh.store.engines.thread import SerialThread, to_the_end

StreamName = Literal["stdout", "stderr"]
OnOutput = Callable[[StreamName, bytes], None]


class Sink(Protocol):
    """Receives a stream piece by piece. It is called in a thread and may block."""

    def write(self, data: bytes, /) -> object:
        """Write the next piece."""


@dataclass(frozen=True)
class Command:
    """The command of a job, and the claim under which it runs."""

    argv: tuple[str, ...]
    job_id: str
    ulid: str
    attempt: int
    claim_token: int
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values are secrets of the worker, by the names of these secrets."""
    cwd: str | None = None
    """The folder to run in; `None` for a temporary folder that is removed afterwards."""
    timeout_s: float | None = None
    """The timeout in seconds; `None` or 0 for no limit."""

    def environment(self, path: str, home: str, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return its whole environment: nothing else is inherited from this process."""
        return {
            "PATH": path,
            "HOME": home,
            "LANG": "C.UTF-8",
            **self.env,
            **secrets,
            "VOX_JOB_ID": self.job_id,
            "VOX_JOB_ULID": self.ulid,
            "VOX_JOB_ATTEMPT": str(self.attempt),
            "VOX_CLAIM_TOKEN": str(self.claim_token),
        }


@dataclass(frozen=True)
class CommandResult:
    """The result of a command: an exit code, a signal, or the problem because of which it did not start."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    problem: str | None = None

    @property
    def is_success(self) -> bool:
        """Return whether it exited with code 0 in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def line(self) -> str:
        """Return the result as one line of text."""
        if self.problem is not None:
            return self.problem
        status = f"exit code {self.exit_code}" if self.signal is None else _signal_name(self.signal)
        return f"stopped by its timeout, with {status}" if self.timed_out else f"ended with {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a signal without a name
        return f"signal {number}"


async def run_command(
    command: Command,
    *,
    policy: ExecPolicy,
    on_output: OnOutput | None = None,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    grace_s: float = GRACE_S,
    on_group: Callable[[ProcessGroup], None] | None = None,
    on_executable: Callable[[str | None], None] | None = None,
) -> CommandResult:
    """Run a command until it ends or its timeout expires, and end all processes it has started.

    Its output goes to the sinks and to `on_output` as it arrives; if one of them fails, the command ends.
    If the call is cancelled, all processes have ended when it raises.
    `on_group` gets the process group before it starts, to measure or end it. `on_executable` gets the hash of
    the executable at the end, or `None` if it is unknown which content ran.
    Raises `CommandRefused` if the policy does not allow the program.
    """
    thread = SerialThread("vox-mesh-command")
    group = ProcessGroup(grace_s=grace_s)
    if on_group is not None:
        on_group(group)
    place = _WorkingFolder(thread, command, policy)
    try:
        async with place:
            secrets = place.secrets.values()
            passed = partial(_pass_on, thread, on_output)
            async with (
                OutputStream(partial(passed, "stdout", stdout), secrets).read_while(group) as out,
                OutputStream(partial(passed, "stderr", stderr), secrets).read_while(group) as err,
            ):
                return await _run(group, place.start(out, err), command.timeout_s)
    except (_CommandNotRunnable, PipeFailed) as error:
        return CommandResult(problem=str(error))
    finally:
        thread.finish()
        if on_executable is not None:
            on_executable(None if place.executable is None else place.executable.hash)


async def _pass_on(
    thread: SerialThread, on_output: OnOutput | None, name: StreamName, sink: Sink | None, piece: bytes
) -> None:
    if sink is not None:
        await thread.do(partial(sink.write, piece))
    if on_output is not None:
        on_output(name, piece)


async def _run(group: ProcessGroup, start: Start, timeout_s: float | None) -> CommandResult:
    timed_out = False

    def stop() -> None:
        nonlocal timed_out
        timed_out = not group.has_ended
        group.end()

    timer = asyncio.get_running_loop().call_later(timeout_s, stop) if timeout_s else None
    try:
        code = await group.run(start)
    except OSError as error:
        raise _CommandNotRunnable(f"can't run {start.argv[0]}: {error.strerror}") from error
    except ValueError as error:  # an argument or variable that can't be passed to a program
        raise _CommandNotRunnable(f"can't run {start.argv[0]!r}: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
    if code < 0:
        return CommandResult(signal=-code, timed_out=timed_out)
    return CommandResult(exit_code=code, timed_out=timed_out)


class _CommandNotRunnable(Exception):
    """The command can't be started; the message is one line that says why."""


# --- working folder ------------------------------------------------------------------------------


class _WorkingFolder:
    """The folder that a command runs in, and its program. Disk access happens in a thread."""

    def __init__(self, thread: SerialThread, command: Command, policy: ExecPolicy) -> None:
        self._thread = thread
        self._command = command
        self._policy = policy
        self._temporary: TemporaryDirectory[str] | None = None
        self.folder = self.program = Path()
        self.search_path = ""
        self.secrets: dict[str, str] = {}
        """The variables that the command gets from its worker."""
        self.executable: Executable | None = None
        """The hashed file of the program; after the end, `None` if it has changed since."""

    async def __aenter__(self) -> _WorkingFolder:
        try:
            await to_the_end(self._thread.do(self._prepare))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self._thread.do(self._remove))

    def _prepare(self) -> None:
        if not self._command.argv:
            raise _CommandNotRunnable("no program is named: there is nothing to run")
        self.folder = self._folder()
        command, name = self._command, self._command.argv[0]
        variables = {**command.env, **dict.fromkeys(command.env_from)}
        self.search_path = self._policy.search_path(command.env)
        program = find_program(name, self.search_path, self.folder)
        if program is None:
            where = "" if "/" in name else f" in {self.search_path}"
            raise _CommandNotRunnable(f"can't run {name!r}: there is no such program{where}")
        if not os.access(program, os.X_OK):
            raise _CommandNotRunnable(f"can't run {name!r}: {program} may not be executed")
        self.program = self._policy.permit(program, command.argv[1:], variables)
        try:
            self.secrets = self._policy.secrets.values(command.env_from)
        except BadSettings as error:
            raise CommandRefused(str(error), hint=error.hint) from None
        self.executable = self._policy.executables.read(self.program)

    def start(self, stdout: int, stderr: int) -> Start:
        """Return how the command is started: as the policy isolates it."""
        isolation = self._policy.isolation
        argv: Sequence[str] = self._command.argv
        program: str | None = str(self.program)
        try:
            wrapped = isolation.wrap(self.folder, self.program, argv[1:])
        except ValueError as error:
            raise _CommandNotRunnable(f"cwd: {error}") from None
        if wrapped is not None:
            argv, program = wrapped, None
        return Start(
            argv,
            self._command.environment(self.search_path, self._home(), self.secrets),
            executable=program,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            is_apart=True,
            user=isolation.user,
        )

    def _folder(self) -> Path:
        if self._command.cwd is None:
            try:
                self._temporary = TemporaryDirectory(prefix="vox-job-", ignore_cleanup_errors=True)
            except OSError as error:
                raise _CommandNotRunnable(f"no folder can be made to run in: {error}") from error
            if (user := self._policy.isolation.user) is not None:
                os.chown(self._temporary.name, user.uid, user.gid)
            return Path(self._temporary.name)
        try:
            folder = self._named_folder(self._command.cwd)
            if folder.is_dir():
                return folder
        except (OSError, ValueError) as error:
            raise _CommandNotRunnable(f"cwd: {self._command.cwd!r} can't be used: {error}") from error
        fault = "is not a folder" if folder.exists() else "does not exist on this node"
        raise _CommandNotRunnable(
            f"cwd: {self._command.cwd!r} {fault}; route the job to a node that has it, or pass --isolated"
        )

    def _named_folder(self, cwd: str) -> Path:
        """Return the folder that a job names; a relative one is below the worker's, also behind links."""
        if Path(cwd).is_absolute():
            return Path(cwd)
        if self._policy.folder is None:
            raise ValueError("this worker has no folder for relative paths")
        own = self._policy.folder.resolve()
        folder = (own / cwd).resolve()
        if not folder.is_relative_to(own):
            raise ValueError("it leads out of the worker's folder")
        return folder

    def _home(self) -> str:
        """Return the home of the command's user, or its own empty folder.

        Not the folder of the job's choice: programs would keep their caches there and read its settings.
        """
        return self._policy.isolation.home if self._temporary is None else self._temporary.name

    def _remove(self) -> None:
        # At the end: an interpreter reads a script after it has started.
        if self.executable is not None and not self.executable.is_unchanged():
            self.executable = None
        if self._temporary is not None:
            self._temporary.cleanup()
