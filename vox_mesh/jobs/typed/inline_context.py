"""The context of a job that runs where it was called, without a mesh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from vox_mesh.errors import BadValue, StepFailed
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.proof.artifacts import Artifact
from vox_mesh.jobs.steps.step_runner import run_step_function
from vox_mesh.jobs.steps.step_values import StepValues
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import BLAKE3
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import DEFAULT_BACKOFF_MS, DEFAULT_PRIORITY, Job, JobState
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.script import Statement, new_key

_log = logging.getLogger(__name__)


class InlineContext(JobContext):
    """A context without a mesh: steps run and are not stored, sleeps return at once.

    What needs other jobs, agents or the database raises `BadValue`.
    """

    def __init__(self, manifest: Manifest, dependencies: Dependencies | None = None) -> None:
        absent: Any = None  # all that would use these parts is overridden
        self._dependencies = dependencies or Dependencies()
        job = _inline_job(manifest, self._dependencies.wall_ms())
        parts = dict.fromkeys(("store", "clock", "artifacts", "notebook", "meter"), absent)
        more = dict.fromkeys(("results", "steps", "jobs"), absent)
        super().__init__(job, job.core, **parts, limits=None, resumed=None, **more)

    @property
    def now_ms(self) -> int:
        """Return the time of this machine, in ms."""
        return self._dependencies.wall_ms()

    @property
    def jobs(self) -> Jobs:
        """Raise `BadValue`: there is no mesh."""
        _refuse("context.jobs")

    async def results(self) -> dict[str, Any]:
        """Return nothing: the job has no predecessors."""
        return {}

    async def each_result(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield nothing: the job has no predecessors."""
        for _ in ():
            yield "", None

    # --- reporting -------------------------------------------------------------------------------

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Log the progress."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadValue(f"progress must be between 0 and 1, got {fraction}")
        _log.info("job progress: kind=%s fraction=%s %s", self.job.kind, fraction, message or "")

    def log(self, text: str) -> None:
        """Log a line."""
        _log.info("job log: kind=%s %s", self.job.kind, text.rstrip("\n"))

    def output(self, stream: str, text: str) -> None:
        """Log a piece of output."""
        self.log(text)

    async def checkpoint(self, value: Any) -> None:
        """Check that the value can be saved; there is no later attempt."""
        canonical(value)

    # --- steps -----------------------------------------------------------------------------------

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retries: int = 0,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        returns: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function, with its retries but without pauses, and return its result as a step would."""
        values = StepValues.of(name, function, returns)
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        call = partial(function, *args, **kwargs)
        for left in range(retries, -1, -1):
            try:
                return values.decode(values.encode(await run_step_function(call, timeout_s)))
            except Exception as error:
                if not left:
                    raise StepFailed(
                        f"step {name} failed: {type(error).__name__}: {error}", step=name
                    ) from error
        raise BadValue(f"retries must be at least 0, got {retries}")

    async def on_cancel(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        retries: int = 0,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> None:
        """Do nothing: the job can't be aborted."""

    async def sleep(self, duration: Duration, *, name: str = "sleep") -> None:
        """Return at once."""
        seconds_of("duration", duration)

    async def ask(
        self, question: Question | str, *, deadline: Duration | None = None, name: str = "ask"
    ) -> Any:
        """Raise `BadValue`: there is no mesh to ask in."""
        _refuse("context.ask")

    async def run_job(
        self,
        kind: str,
        payload: Any = None,
        *,
        deadline: Duration | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Raise `BadValue`: there is no worker. `run_child` of a typed job runs it here."""
        _refuse("context.run_job")

    async def wait_message(
        self,
        *,
        thread: str | None = None,
        msg_type: str | None = None,
        to: str | None = None,
        deadline: Duration | None = None,
        name: str = "message",
    ) -> Message:
        """Raise `BadValue`: there is no mesh."""
        _refuse("context.wait_message")

    async def now(self) -> datetime:
        """Return the time of this machine."""
        return datetime.fromtimestamp(self.now_ms / 1_000, UTC)

    async def random(self) -> float:
        """Return a random number from 0 to 1."""
        return self._dependencies.chance()

    async def version(self, name: str, version: int) -> int:
        """Return the version: the job is new."""
        return version

    # --- usage and artifacts ---------------------------------------------------------------------

    def charge(
        self,
        *,
        model: str | None = None,
        input_tokens: int | Mapping[str, int] | None = None,
        output_tokens: int | Mapping[str, int] | None = None,
        **amounts: float | Mapping[str, float],
    ) -> None:
        """Check the usage; nothing is charged."""
        tokens = {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens}
        Usage.of({**{name: value for name, value in tokens.items() if value is not None}, **amounts})

    async def keep(self, name: str, body: bytes | str, type: str | None = None) -> Artifact:  # noqa: A002
        """Keep an artifact in `kept`."""
        content = body.encode() if isinstance(body, str) else body
        default = "text/plain" if isinstance(body, str) else "application/octet-stream"
        content_hash = BLAKE3 + blake3(content).hexdigest()
        return self._add(Artifact(name, content_hash, len(content), type or default, content))

    async def keep_file(self, name: str, path: Path, type: str = "application/octet-stream") -> Artifact:  # noqa: A002
        """Keep a file in `kept`."""
        return await self.keep(name, await asyncio.to_thread(path.read_bytes), type)

    def fence(self) -> Statement:
        """Raise `BadValue`: there is no claim."""
        _refuse("context.fence")

    async def _log_inference(self, artifact: Artifact) -> None:
        """Log no op: its snapshot is in `kept`."""


def _inline_job(manifest: Manifest, now_ms: int) -> Job:
    """Return the row that the job would have in its first attempt."""
    return Job(
        id=0,
        job_id=manifest.content_id,
        ulid=manifest.ulid or new_key(),
        kind=manifest.job_kind,
        state=JobState.RUNNING.value,
        priority=DEFAULT_PRIORITY if manifest.priority is None else manifest.priority,
        waits=0,
        not_before_ms=now_ms,
        max_attempts=1,
        max_interruptions=0,
        backoff_ms=DEFAULT_BACKOFF_MS if manifest.backoff_ms is None else manifest.backoff_ms,
        lease_ms=manifest.lease_ms,
        claimer=None,
        claim_token=0,
        lease_until_ms=None,
        attempts=1,
        failures=0,
        interruptions=0,
        created_ms=now_ms,
        started_ms=now_ms,
        ended_ms=None,
        exit_code=None,
        reason=None,
        output_artifacts="[]",
        retry_of=None,
        scheduled_by="",
        seed="",
        last_op="",
        binding=None,
        manifest=canonical(manifest.core(), max_depth=None),
    )


def _refuse(call: str) -> NoReturn:
    raise BadValue(
        f"{call} needs a mesh, and run_inline has none",
        hint="schedule the job, in tests on the mesh of `vox_mesh.testing.MeshHarness`",
    )
