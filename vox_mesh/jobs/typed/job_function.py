"""The functions of typed jobs, called with the payloads of jobs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final

from vox_mesh.errors import BadArguments
from vox_mesh.jobs.typed.job_signature import JobSignature
from vox_mesh.jobs.typed.running_job import running
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import HandlerSet


class UnfitPayload(GiveUp):
    """The payload of a job does not fit its function; another attempt would read the same."""

    def __init__(self, error: BadArguments) -> None:
        super().__init__(error.line)
        self._code = error.code

    @property
    def reason(self) -> str:
        """Return the code and the line of the error."""
        return f"{self._code}: {self}"


class JobFunction:
    """The function of a typed job."""

    def __init__(self, kind: str, function: Callable[..., Any], handlers: HandlerSet | None) -> None:
        """`handlers`: where it is registered. Raises `BadValue` if a job can't have its parameters."""
        self.kind: Final = kind
        self._handlers = handlers
        self.function: Final = function
        self.signature: Final = JobSignature(kind, function)
        self._is_async = inspect.iscoroutinefunction(function)

    @property
    def handler(self) -> Callable[[JobContext], Any]:
        """Return the handler of its jobs, which is async if the function is."""
        return self._handle_async if self._is_async else self._handle

    async def _handle_async(self, context: JobContext) -> Any:
        arguments = self._arguments(context)
        with running(context, self._handlers):
            result = await self.function(*arguments.args, **arguments.kwargs)
        return self.signature.result_as_json(result)

    def _handle(self, context: JobContext) -> Any:
        arguments = self._arguments(context)
        with running(context, self._handlers):
            result = self.function(*arguments.args, **arguments.kwargs)
        return self.signature.result_as_json(result)

    def _arguments(self, context: JobContext) -> inspect.BoundArguments:
        try:
            return self.signature.arguments(context)
        except BadArguments as error:
            raise UnfitPayload(error) from None

    async def call_inline(self, context: JobContext) -> Any:
        """Call the function in this process, and return its result as it would be stored and read again.

        A function that is not async runs in a thread, as in a worker.
        """
        arguments = self.signature.arguments(context)
        if self._is_async:
            result = await self.function(*arguments.args, **arguments.kwargs)
        else:
            call = copy_context().run
            result = await asyncio.to_thread(call, self.function, *arguments.args, **arguments.kwargs)
        return self.signature.result(self.signature.result_as_json(result))
