"""Typed jobs for code without `await`: the same ones, and every call blocks until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from vox_mesh.errors import WrongThread
from vox_mesh.jobs.typed.job_decorator import JobDecorator
from vox_mesh.jobs.typed.job_handle import JobHandle
from vox_mesh.jobs.typed.job_options import CallOptions
from vox_mesh.jobs.typed.job_signature import JobPayload
from vox_mesh.jobs.typed.typed_job import TypedJob
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.running_loop import running_loop
from vox_mesh.model.base.durations import Duration
from vox_mesh.model.jobs.records import Job, Scheduled

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MAX_CALL: Final = "1d"
"""How long a job may wait for a call that it makes; the timeout of the call ends it before."""


class CallInLoop(Protocol):
    """Calls an async function in the loop of the mesh, and waits for it."""

    def __call__(self, work: Callable[[], Awaitable[T]], /) -> T: ...


class BlockingJobHandle(Generic[R]):
    """The handle of a scheduled job."""

    def __init__(self, handle: JobHandle[R], call: CallInLoop) -> None:
        self._handle = handle
        self._call = call
        self.kind: Final = handle.kind
        self.job_id: Final = handle.job_id
        self.scheduled: Final[Scheduled | None] = handle.scheduled
        """How the job was scheduled, or `None` if this handle was made from its id."""

    def wait(self, *, timeout: Duration | None = None) -> Job:
        """Wait until the job is terminal. Raises `TimeoutError` after `timeout` seconds."""
        return self._call(lambda: self._handle.wait(timeout=timeout))

    def result(self, *, timeout: Duration | None = None) -> R:
        """Wait until the job is terminal, and return what its function returned.

        Raises `JobNotSucceeded` if it did not succeed, and `TimeoutError` after `timeout` seconds.
        """
        return self._call(lambda: self._handle.result(timeout=timeout))

    def abort(self, reason: str = "aborted") -> bool:
        """Abort the job, and return whether it was not terminal yet."""
        return self._call(lambda: self._handle.abort(reason))

    def __repr__(self) -> str:
        return repr(self._handle)


class BlockingJob(Generic[P, R]):
    """A function as jobs of one kind: schedule it with its arguments, or run it here."""

    def __init__(self, job: TypedJob[P, R], call: CallInLoop) -> None:
        self._job = job
        self._call = call
        self.kind: Final = job.kind

    @property
    def function(self) -> Callable[..., Any]:
        """Return the function as it was declared."""
        return self._job.function

    # --- scheduling ------------------------------------------------------------------------------

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJobHandle[R]:
        """Schedule a call of the function. Raises `BadArguments`, which names the parameter."""
        return self._handle(self._call(lambda: self._job.schedule(*args, **kwargs)))

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJobHandle[R]:
        """Call `schedule`, by the name that users of Celery know. To start later: `with_options(delay=…)`."""
        return self.schedule(*args, **kwargs)

    def schedule_all(self, calls: Iterable[Mapping[str, Any]]) -> list[BlockingJobHandle[R]]:
        """Schedule many calls in one write, all or none: payloads, or arguments by name."""
        return [self._handle(each) for each in self._call(lambda: self._job.schedule_all(calls))]

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> JobPayload:
        """Return the payload of a call, for `schedule_all`, crons, rules and workflows."""
        return self._job.payload(*args, **kwargs)

    def handle(self, job_id: str) -> BlockingJobHandle[R]:
        """Return the handle of a job that was scheduled before, by its id."""
        return self._handle(self._job.handle(job_id))

    def _handle(self, handle: JobHandle[R]) -> BlockingJobHandle[R]:
        return BlockingJobHandle(handle, self._call)

    def with_options(self, **options: Unpack[CallOptions]) -> BlockingJob[P, R]:
        """Return the same job with other options for its calls, such as `priority=3` or `delay="10m"`."""
        return BlockingJob(self._job.with_options(**options), self._call)

    # --- running ---------------------------------------------------------------------------------

    def run_inline(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, without a mesh, and return its result.

        Arguments and result go through their JSON, as for a worker. A context stores nothing.
        """
        refuse_in_loop()
        return asyncio.run(self._job.run_inline(*args, **kwargs))

    def run_child(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it as a child of the job with this context, as `context.run_job` does; return its result."""
        return context.run(self._job.run_child(context, *args, **kwargs))

    def __repr__(self) -> str:
        return repr(self._job)


class BlockingJobDecorator:
    """Makes a typed job of a function, and registers it as the handler of its kind."""

    def __init__(self, decorator: JobDecorator, call: CallInLoop) -> None:
        self._decorator = decorator
        self._call = call

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]
    ) -> BlockingJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R]) -> BlockingJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> BlockingJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> BlockingJob[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> BlockingJob[..., Any]:
        """Return the function as a typed job. Raises `BadValue` if a job can't have its parameters."""
        job: TypedJob[..., Any] = self._decorator(function)
        return BlockingJob(job, self._call)


def call_in_job(context: JobContext, work: Callable[[], Awaitable[T]]) -> T:
    """Call an async function in the loop of the worker that runs a job."""

    async def call() -> T:
        return await work()

    return context.run(call(), timeout=_MAX_CALL)


def refuse_in_loop() -> None:
    """Raise `WrongThread` in the thread of a running event loop."""
    if running_loop() is not None:
        raise WrongThread(
            "blocking call in the thread of an event loop: it would stop the loop",
            hint="call it from a plain function, or use the async jobs of `vox_mesh.MeshApp`",
        )
