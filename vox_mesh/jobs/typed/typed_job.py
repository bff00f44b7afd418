"""Typed jobs: a function that is scheduled with its arguments, and that a worker calls with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.typed.inline_context import InlineContext
from vox_mesh.jobs.typed.job_function import JobFunction
from vox_mesh.jobs.typed.job_handle import FindJobs, JobHandle
from vox_mesh.jobs.typed.job_options import CallOptions, manifest_fields, manifest_of
from vox_mesh.jobs.typed.job_signature import JobPayload
from vox_mesh.jobs.worker.context import JobContext

P = ParamSpec("P")
R = TypeVar("R")


class HasJobs(Protocol):
    """An open mesh."""

    @property
    def jobs(self) -> Jobs:
        """Return the jobs of the mesh."""


class TypedJob(Generic[P, R]):
    """A function as jobs of one kind: schedule it with its arguments, or run it here."""

    def __init__(self, function: JobFunction, options: Mapping[str, Any], find_jobs: FindJobs) -> None:
        self._function = function
        self._options = options
        self._find_jobs = find_jobs
        self.kind: Final = function.kind

    @property
    def function(self) -> Callable[..., Any]:
        """Return the function as it was declared."""
        return self._function.function

    # --- scheduling ------------------------------------------------------------------------------

    async def schedule(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Schedule a call of the function. Raises `BadArguments`, which names the parameter."""
        (handle,) = await self._schedule([self.payload(*args, **kwargs)])
        return handle

    async def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Call `schedule`, by the name that users of Celery know. To start later: `with_options(delay=…)`."""
        return await self.schedule(*args, **kwargs)

    async def schedule_all(self, calls: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Schedule many calls in one write, all or none: payloads, or arguments by name."""
        signature = self._function.signature
        return await self._schedule(
            [each if isinstance(each, JobPayload) else signature.payload_of(each) for each in calls]
        )

    async def _schedule(self, payloads: Iterable[JobPayload]) -> list[JobHandle[R]]:
        jobs = self._find_jobs()
        now_ms = jobs.clock.now_ms
        manifests = [manifest_of(self.kind, self._options, each, now_ms) for each in payloads]
        scheduled = await jobs.schedule_all(manifests, new=self._options.get("new", True))
        return [JobHandle(self._find_jobs, self._function.signature, each.job_id, each) for each in scheduled]

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> JobPayload:
        """Return the payload of a call, for `schedule_all`, crons, rules and workflows."""
        return self._function.signature.payload(*args, **kwargs)

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return the handle of a job that was scheduled before, by its id."""
        return JobHandle(self._find_jobs, self._function.signature, job_id)

    # --- variants --------------------------------------------------------------------------------

    def with_options(self, **options: Unpack[CallOptions]) -> TypedJob[P, R]:
        """Return the same job with other options for its calls, such as `priority=3` or `delay="10m"`."""
        manifest_fields({**self._options, **options}, 0)  # raises what is wrong with them
        return TypedJob(self._function, {**self._options, **options}, self._find_jobs)

    def on(self, mesh: HasJobs) -> TypedJob[P, R]:
        """Return the same job, scheduled on this mesh."""
        return TypedJob(self._function, self._options, lambda: mesh.jobs)

    # --- running ---------------------------------------------------------------------------------

    async def run_inline(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, without a mesh, and return its result.

        Arguments and result go through their JSON, as for a worker. A context stores nothing.
        """
        context = InlineContext(manifest_of(self.kind, self._options, self.payload(*args, **kwargs), 0))
        return cast(R, await self._function.call_inline(context))

    async def run_child(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it as a child of the job with this context, as `context.run_job` does; return its result."""
        if isinstance(context, InlineContext):
            return await self.run_inline(*args, **kwargs)
        payload, fields = self.payload(*args, **kwargs), manifest_fields(self._options, context.now_ms)
        result = await context.run_job(self.kind, dict(payload), **fields)
        return cast(R, self._function.signature.result(result))

    def __repr__(self) -> str:
        return f"<typed job {self.kind}{self._function.signature}>"
