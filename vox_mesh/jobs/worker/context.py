"""The context of a handler: its job's payload, progress, checkpoints, artifacts and claim."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vox_mesh.errors import BadValue, StaleClaim, WrongThread
from vox_mesh.jobs.predecessor_results import PredecessorResults
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.steps.step_runner import StepRunner, gather
from vox_mesh.jobs.steps.step_values import StepValues
from vox_mesh.jobs.transitions import SQL
from vox_mesh.jobs.worker.attempt_limits import AttemptLimits
from vox_mesh.jobs.worker.metering import Meter
from vox_mesh.jobs.worker.phrase import JobPhrase
from vox_mesh.jobs.worker.running_loop import running_loop
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.jobs.inference import SNAPSHOT, inference_snapshot
from vox_mesh.model.jobs.proof import CommandAttestation
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import INFERENCE, Job
from vox_mesh.model.jobs.steps.suspension import AwaitedMessage
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.script import Op, Script, Statement, guard
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs

T = TypeVar("T")

_CALL_TIMEOUT_S: Final = 60.0
_MAX_ARTIFACTS: Final = 64


class JobContext:
    """One attempt at a job, as its handler sees it.

    A handler that is not async runs in a thread. It may call everything but the coroutines directly,
    and coroutines with `context.run(...)`.
    """

    def __init__(
        self,
        job: Job,
        core: Mapping[str, Any],
        store: Store,
        clock: MeshClock,
        artifacts: Artifacts,
        notebook: Notebook,
        meter: Meter,
        limits: AttemptLimits | None,
        resumed: Any,
        results: PredecessorResults,
        steps: StepRunner | Callable[[], StepRunner],
        jobs: Jobs,
        answer: Any = None,
    ) -> None:
        self.job: Final = job
        self.core: Final = core
        """The core of the manifest, whose hash is the job's id."""
        self.payload: Final[Any] = self.core.get("payload")
        self.resumed: Final = resumed
        """The last checkpoint of an earlier attempt, or `None`."""
        self.answer: Final = answer
        """The answer to the last question of an earlier attempt, or `None`."""
        self.kept: list[Artifact] = []
        self.attested: CommandAttestation | None = None
        """What the proof says about a command that ran."""
        self.inferences: list[str] = []
        """The ops that recorded model calls."""
        self._results = results
        self._jobs = jobs
        self._steps = steps
        self._is_closed = False
        self._store = store
        self._clock = clock
        self._artifacts = artifacts
        self._notebook = notebook
        self._loop = asyncio.get_running_loop()
        self.meter: Final = meter
        """Measures what the attempt uses."""
        self.limits: Final = limits
        """The score and budgets that limit the attempt."""
        self._is_cancelled = False
        self._cancellation: threading.Event | None = None  # set when a thread waits for it
        self.thread: asyncio.Future[Any] | None = None
        """The call of a handler that is not async; it can't be stopped."""

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, from 1."""
        return self.job.attempts

    @property
    def now_ms(self) -> int:
        """Return the time of the mesh, in ms."""
        return self._clock.now_ms

    @property
    def jobs(self) -> Jobs:
        """Return the jobs of the mesh, to schedule others. Each attempt does so again: see `run_job`."""
        return self._jobs

    async def results(self) -> dict[str, Any]:
        """Return the results of the predecessors that have succeeded, by name in a workflow or by id."""
        return await self._results.read(self.job)

    def each_result(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield what `results` returns one by one, however much it is: `async for name, result in …`."""
        return self._results.each(self.job)

    # --- reporting -------------------------------------------------------------------------------

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report the completed fraction, from 0 to 1, and a message."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadValue(f"progress must be between 0 and 1, got {fraction}")
        self._call_in_loop(self._notebook.progress, fraction, message)
        if self.phrase is not None:
            self._call_in_loop(self.phrase.report_progress, fraction, message)

    def log(self, text: str) -> None:
        """Add a line to the job's log, for `vox-mesh job logs`."""
        self._call_in_loop(self._notebook.log, "log", text if text.endswith("\n") else text + "\n")

    def output(self, stream: str, text: str) -> None:
        """Add a piece of a command's output to the job's log."""
        self._call_in_loop(self._notebook.log, stream, text)

    async def checkpoint(self, value: Any) -> None:
        """Save a JSON value from which another attempt may resume. It is durable on return."""
        await self._notebook.checkpoint(value)

    # --- durable steps ---------------------------------------------------------------------------

    @property
    def steps(self) -> StepRunner:
        """Return what runs the durable steps of the attempt."""
        if self._is_closed and self.used_steps is None:
            raise StaleClaim(StaleClaim.code, statement=0)
        if not isinstance(self._steps, StepRunner):
            self._steps = self._steps()
        return self._steps

    @property
    def used_steps(self) -> StepRunner | None:
        """Return what runs the durable steps, or `None` if neither the job nor this attempt has any."""
        return self._steps if isinstance(self._steps, StepRunner) else None

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
        """Call a function once per job, and return its stored result in every later attempt.

        The result is durable on return: a JSON value, or one of the type that the function declares (or
        `returns`), such as a dataclass or a pydantic model. A function that is not async runs in a thread.
        After `retries` failures, each followed by a growing pause, `StepFailed` is raised. A worker that has
        lost its claim can't store a result: `StaleClaim` is raised.
        """
        values = StepValues.of(name, function, returns)
        call = partial(function, *args, **kwargs)
        return await self.steps.call(name, call, values, retries, backoff, timeout)

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
        """Register a compensation: if the job is aborted from now on, a worker calls the function.

        It is durable on return. The last one that was registered is called first, each as a step of a job
        that follows the aborted one. Register it before the step whose effect it undoes.
        """
        call = partial(function, *args, **kwargs)
        given = name or str(getattr(function, "__name__", "compensation"))
        await self.steps.on_cancel(given, call, retries, backoff, timeout)

    async def sleep(self, duration: Duration, *, name: str = "sleep") -> None:
        """Suspend the job without a worker; it goes on when the time has passed, on any worker."""
        await self.steps.sleep(duration, name)

    async def ask(
        self, question: Question | str, *, deadline: Duration | None = None, name: str = "ask"
    ) -> Any:
        """Ask a person or an agent, suspend the job without a worker, and return the answer.

        Raises `StepTimedOut` if it is not answered within `deadline`.
        """
        asked = Question(question) if isinstance(question, str) else question
        return await self.steps.ask(asked.checked(), deadline, name)

    async def run_job(
        self,
        kind: str,
        payload: Any = None,
        *,
        deadline: Duration | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Schedule a job once, suspend this one until it has ended, and return its result.

        `options` are those of a manifest, such as `priority` or `max_attempts`. Raises `JobNotSucceeded`, and
        `StepTimedOut` if it has not ended within `deadline`; it goes on.
        """
        return await self.steps.run_job(kind, payload, options, deadline, name or kind)

    @property
    def inbox(self) -> str:
        """Return the address of messages to this job."""
        return f"job:{self.job.ulid}"

    async def wait_message(
        self,
        *,
        thread: str | None = None,
        msg_type: str | None = None,
        to: str | None = None,
        deadline: Duration | None = None,
        name: str = "message",
    ) -> Message:
        """Suspend the job until a message has come, and return it: no other recipient gets it.

        It is one in a thread, to any recipient, or without `thread` one to `to`, by default to `inbox`.
        `msg_type`: of this type only. Raises `StepTimedOut` if none has come within `deadline`.
        """
        receiver = to or ("" if thread is not None else self.inbox)
        awaited = AwaitedMessage.of(thread, msg_type, receiver)
        return await self.steps.wait_message(awaited, deadline, name)

    async def gather(self, *steps: Awaitable[Any]) -> list[Any]:
        """Run steps at the same time, and return their results. The job is suspended until all can go on."""
        return await gather(*steps)

    async def now(self) -> datetime:
        """Return the time of the mesh when the job first came here."""
        return await self.steps.now()

    async def random(self) -> float:
        """Return a random number from 0 to 1, the same in every attempt."""
        return await self.steps.random()

    async def version(self, name: str, version: int) -> int:
        """Return which version of the code this job runs from here on: 1 if it was here before the change."""
        return await self.steps.version(name, version)

    # --- limits ----------------------------------------------------------------------------------

    @property
    def phrase(self) -> JobPhrase | None:
        """Return the phrase of this attempt, whose phases a handler may enter, or `None` without a score."""
        return None if self.limits is None else self.limits.phrase

    @property
    def phrase_beats(self) -> float | None:
        """Return the beats this attempt may take, or `None` if its job has no score."""
        return None if self.limits is None else self.limits.phrase_beats

    @property
    def beats_left(self) -> float | None:
        """Return the beats that are left, or `None` if its job has no score."""
        beats = self.phrase_beats
        return None if beats is None or self.limits is None else max(0.0, beats - self.limits.beats)

    def charge(
        self,
        *,
        model: str | None = None,
        input_tokens: int | Mapping[str, int] | None = None,
        output_tokens: int | Mapping[str, int] | None = None,
        **amounts: float | Mapping[str, float],
    ) -> None:
        """Report usage that the worker does not measure, such as `gpu_sec={"A100": 3.2}`.

        Tokens of language models are given with their `model`, or as maps of models to numbers. Each call
        adds to the ones before.
        """
        tokens = {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens}
        given = {name: value for name, value in tokens.items() if value is not None}
        self._call_in_loop(self.meter.report, Usage.of({**given, **amounts}))

    # --- artifacts -------------------------------------------------------------------------------

    async def keep(self, name: str, body: bytes | str, type: str | None = None) -> Artifact:  # noqa: A002
        """Store an artifact, which becomes part of the proof."""
        if isinstance(body, str):
            body, type = body.encode(), type or "text/plain"  # noqa: A001
        return self._add(await self._artifacts.keep(body, name=name, type=type or "application/octet-stream"))

    async def keep_file(self, name: str, path: Path, type: str = "application/octet-stream") -> Artifact:  # noqa: A002
        """Store a file as an artifact."""
        return self._add(await self._artifacts.keep_file(path, name=name, type=type))

    async def record_inference(
        self,
        *,
        model: str,
        version: str,
        prompt: Any,
        output: Any,
        inputs: Sequence[Any] = (),
        started_ms: int | None = None,
        finished_ms: int | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> Artifact:
        """Store a snapshot of one model call, with its prompt and output, and log it as an op.

        Its tokens are charged.
        """
        now_ms = self.now_ms
        if input_tokens or output_tokens:
            self.charge(model=model, input_tokens=input_tokens, output_tokens=output_tokens)
        snapshot = inference_snapshot(
            self.job.job_id,
            model,
            version,
            prompt,
            output,
            inputs,
            now_ms if started_ms is None else started_ms,
            now_ms if finished_ms is None else finished_ms,
        )
        name = f"inference-{sum(each.type == SNAPSHOT for each in self.kept) + 1}"
        body = canonical(snapshot).encode()
        artifact = await self.keep(name, body, SNAPSHOT)
        await self._log_inference(artifact)
        return artifact

    async def _log_inference(self, artifact: Artifact) -> None:
        """Log the hash of a snapshot. The completion of the job names the op."""
        job = self.job
        payload = {"job_id": job.job_id, "claim_token": job.claim_token, "name": artifact.name}
        op = Op(INFERENCE, canonical({**payload, "hash": artifact.hash}), (job.last_op,))
        self.inferences.append((await self._store.write(Script(op=op, appendable=True))).key)

    def _add(self, artifact: Artifact) -> Artifact:
        if len(self.kept) >= _MAX_ARTIFACTS:
            raise BadValue(f"artifacts of a job must be at most {_MAX_ARTIFACTS}")
        self.kept.append(artifact)
        return artifact

    # --- the claim -------------------------------------------------------------------------------

    def fence(self) -> Statement:
        """Return a guard for the handler's scripts: they apply only while the claim is valid."""
        return claim_fence(self._store, self.job)

    @property
    def is_cancelled(self) -> bool:
        """Return whether the claim is lost or the worker stops; further work has no effect."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Ask a handler in a thread to stop."""
        self._is_cancelled = True
        if self._cancellation is not None:
            self._cancellation.set()

    def wait_cancelled(self, timeout: Duration) -> bool:
        """Wait up to `timeout` for the cancellation and return whether it came. For threads only."""
        timeout_s = seconds_of("timeout", timeout)
        self._cancellation = event = self._cancellation or threading.Event()
        return self._is_cancelled or event.wait(timeout_s)

    # --- threads ---------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: Duration = _CALL_TIMEOUT_S) -> T:
        """Run a coroutine such as `context.checkpoint(...)` from a handler's thread."""
        timeout_s = seconds_of("timeout", timeout)
        if running_loop() is self._loop:
            coroutine.close()
            raise WrongThread(
                "context.run in the thread of the event loop: it would stop the loop",
                hint="await the call, or make the handler a plain function, which gets its own thread",
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def _call_in_loop(self, function: Any, *args: Any) -> None:
        if running_loop() is self._loop:
            function(*args)
        else:
            self._loop.call_soon_threadsafe(function, *args)

    async def close(self) -> None:
        """Write the pending progress and log lines, and no more steps."""
        self._is_closed = True
        if (steps := self.used_steps) is not None:
            await steps.log.close()
        await self._notebook.close()


def claim_fence(store: Store, job: Job) -> Statement:
    """Return a guard for scripts that apply only while the claim of a job is valid."""
    values = (*store.mesh_id, job.job_id, job.claim_token, job.claimer)
    return guard(f"EXISTS ({SQL['is_current']})", values, refusal=StaleClaim.code)
