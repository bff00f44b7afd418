"""`vox-mesh job run-next`: take a job, run a command for it under its lease, and report its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any, Final

import click

from vox_mesh.cli.jobs.work import CLAIM_TOKEN, run_work, take_options
from vox_mesh.cli.support.exit_codes import KILLED, ExitCode, shell_exit_code
from vox_mesh.cli.support.options import TrailingCommand, acting_agent
from vox_mesh.cli.support.session import AgentMesh, start_quickly
from vox_mesh.cli.support.terminal import Terminal
from vox_mesh.errors import AWAY, BadValue, MeshError
from vox_mesh.jobs.exec.process_group import ProcessGroup, Start
from vox_mesh.jobs.work.reports import Report, ReportedOutcome, failed, succeeded, yielded
from vox_mesh.jobs.work.work import TakenJob
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_json
from vox_mesh.settings.process import deny_inspection
from vox_mesh.settings.secrets import without_credentials
from vox_mesh.store.engines.thread import to_the_end

_log = logging.getLogger(__name__)

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_RENEWALS_PER_LEASE: Final = 3
_RETRY_S: Final = 1.0
_MAX_RESULT: Final = 2**20


@click.command(name="run-next", cls=TrailingCommand)
@click.argument("kinds", nargs=-1, metavar="[KIND...] -- COMMAND...")
@take_options("60s")
def run_next(
    kinds: tuple[str, ...],
    agent: str | None,
    wait: float,
    lease: float | None,
    tags: tuple[str, ...],
    command: list[str],
) -> int:
    """Take a job, run a command for it, and report its exit code.

    KIND is as for `job take`; without it, jobs of all kinds but commands are taken. The command gets the
    payload as JSON on stdin, and VOX_JOB_ID, VOX_JOB_ULID, VOX_JOB_KIND, VOX_JOB_ATTEMPT, VOX_JOB_CLAIM_TOKEN
    and VOX_AGENT_ID. JSON that it writes to the file VOX_JOB_RESULT becomes the result. The lease is renewed
    while it runs. With exit code 0 the job has succeeded, otherwise it has failed. A signal is passed on; the
    job of a command that a signal has ended goes back to the queue.

    The command does not get the tokens of the database and of the node, nor the names of their files.

    Ends with the command's exit code, or 128 and the signal that killed it; with 1 if there is no job, its
    claim is lost or its result is not JSON, 127 if the command is not found, and 126 if it can't be run.

    \b
    Example:
      vox-mesh job run-next 'build.*' --agent coder -- make
    """
    if not command:
        raise click.UsageError("no command given: write it after `--`", click.get_current_context())
    settings = start_quickly("job run-next", through_node=True)
    name = acting_agent(agent, settings, "--agent")

    async def work(mesh: AgentMesh) -> int:
        deny_inspection()  # the key of the node is in this process's memory
        take = partial(mesh.work.take, name, kinds or ("*",), wait=wait, lease=lease, tags=tags)
        return await _CommandRun(mesh, command).run(take)

    return run_work(settings, work, name)


class _CommandRun:
    """The run of a command for a job: it ends with the claim, and is stopped by signals."""

    def __init__(self, mesh: AgentMesh, command: list[str]) -> None:
        self._mesh = mesh
        self._command = command
        self._group: ProcessGroup | None = None
        self._is_over = False
        self._stopped_by: int | None = None

    async def run(self, take: Callable[[], Awaitable[list[TakenJob]]]) -> int:
        """Take a job, run the command, report; return the exit code."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background shells ignore some
                loop.add_signal_handler(number, self._pass_on, number, task)
        try:
            taken = await take()
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            task.uncancel()
            return KILLED + self._stopped_by
        if not taken:
            _log.info("no job to take")
            return ExitCode.NO
        return await self._work_on(taken[0])

    def _pass_on(self, number: int, task: asyncio.Task[Any]) -> None:
        """Forward a signal to the command; before there is a job, stop."""
        if self._group is not None:
            self._group.signal(number)
        elif not self._is_over and self._stopped_by is None:
            task.cancel()
        self._stopped_by = self._stopped_by or number

    async def _work_on(self, taken: TakenJob) -> int:
        """Run the command while the lease is renewed, and report how it went."""
        with NamedTemporaryFile(prefix="vox-mesh-result-") as result:
            running = asyncio.create_task(self._execute(taken, result.name), name="vox-mesh-command")
            renewing = asyncio.create_task(self._renew_until_lost(taken), name="vox-mesh-lease")
            await asyncio.wait((running, renewing), return_when=asyncio.FIRST_COMPLETED)
            self._is_over = running.done()
            for task in (running, renewing):  # only then may another agent have the job
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            if not self._is_over:
                _log.warning("claim lost, command stopped: job_id=%s", taken.job.job_id)
                return ExitCode.NO
            code = running.result()
            return await self._report(taken, code, self._report_of(code, Path(result.name)))

    async def _execute(self, taken: TakenJob, result_file: str) -> int:
        job = taken.job
        variables = {
            "VOX_JOB_ID": job.job_id,
            "VOX_JOB_ULID": job.ulid,
            "VOX_JOB_KIND": job.kind,
            "VOX_JOB_ATTEMPT": str(job.attempts),
            CLAIM_TOKEN: str(taken.claim_token),
            "VOX_JOB_RESULT": result_file,
            "VOX_AGENT_ID": taken.agent,
        }
        try:
            with TemporaryFile() as payload:
                payload.write(canonical(taken.payload).encode() + b"\n")
                payload.seek(0)
                self._group = ProcessGroup(Terminal())
                environment = without_credentials(os.environ) | variables
                start = Start(self._command, environment, stdin=payload.fileno())
                return shell_exit_code(await self._group.run(start))
        except OSError as error:
            name = self._command[0]
            click.echo(
                f"vox-mesh: command {name} can't be run: {error.strerror}; check its name and PATH", err=True
            )
            return ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.NOT_RUNNABLE
        finally:
            self._group = None

    async def _renew_until_lost(self, taken: TakenJob) -> None:
        """Renew the lease until it is lost."""
        lease_s = taken.lease_ms / 1_000
        deadline, pause = time.monotonic() + lease_s, lease_s / _RENEWALS_PER_LEASE
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, pause))
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, deadline - sent)):
                    renewed = await self._mesh.work.renew(taken.job, taken.claim_token)
            except (TimeoutError, *AWAY):
                pause = min(pause, _RETRY_S)
            except MeshError as error:
                _log.warning("lease not renewed: job_id=%s: %s", taken.job.job_id, error.line)
                return
            else:
                lease_s = renewed.lease_ms / 1_000
                deadline, pause = sent + lease_s, lease_s / _RENEWALS_PER_LEASE

    def _report_of(self, code: int, result: Path) -> Report:
        if code == 0:
            try:
                return succeeded(_result_in(result), exit_code=0)
            except BadValue as error:
                return failed(f"its result can't be read: {error.line}", exit_code=0)
        if self._stopped_by is not None:
            return yielded(f"stopped by {signal.Signals(self._stopped_by).name}", delay=0)
        if code in (ExitCode.NOT_FOUND, ExitCode.NOT_RUNNABLE):
            return yielded(f"the command of the agent can't be run: {self._command[0]}")
        return failed(f"exit code {code}", exit_code=code)

    async def _report(self, taken: TakenJob, code: int, report: Report) -> int:
        reporting = self._mesh.work.report(taken.job, taken.claim_token, report)
        try:
            job = await to_the_end(asyncio.ensure_future(reporting))
        except MeshError as error:
            _log.warning("report refused: job_id=%s: %s", taken.job.job_id, error.line)
            return ExitCode.NO
        _log.info("job reported: job_id=%s state=%s", job.job_id, job.state)
        if code == 0 and report.outcome is ReportedOutcome.FAILED:
            _log.warning("job failed: job_id=%s: %s", job.job_id, report.reason)
            return ExitCode.NO
        return code


def _result_in(path: Path) -> Any:
    """Return the JSON value in a file; `None` if it is empty. Raises `BadValue` if it is none."""
    size = path.stat().st_size
    if size > _MAX_RESULT:
        raise BadValue(f"it must be at most {_MAX_RESULT} bytes, got {size}")
    content = path.read_bytes()
    return read_json(content) if content.strip() else None
