"""Pydantic AI: agents whose model requests and tool calls are durable steps of a job."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, cast
from weakref import WeakKeyDictionary

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.typed.running_job import running, running_job
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.base.durations import Duration

try:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        DurabilityEngineSpec,
        DurableOperationBackend,
        DurableOperationId,
        JournalCallableOperationBackend,
        RoleBasedOperationConfig,
        ToolsetKind,
        conversation_id_from_run_id,
    )
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import Model
    from pydantic_ai.tools import AgentDepsT
except ModuleNotFoundError as missing:
    raise BadSettings("Pydantic AI is not installed", hint="pip install 'vox-mesh[pydantic-ai]'") from missing

_IN_STEP: Final[ContextVar[bool]] = ContextVar("vox_mesh_in_step", default=False)
_runs: Final[WeakKeyDictionary[JobContext, int]] = WeakKeyDictionary()
"""How many runs of agents an attempt has begun, by its context."""


class StepOptions(TypedDict, total=False):
    """How a step is run: as `context.step` has them."""

    retries: int
    backoff: Duration
    timeout: Duration | None


@contextmanager
def in_job(context: JobContext) -> Iterator[None]:
    """Run agents in the block as steps of this job. The function of a typed job does not need it."""
    with running(context):
        yield


class MeshDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable in a job: `Agent(…, capabilities=[MeshDurability()])`.

    Each model request, tool call and discovery of tools is a step: a later attempt gets its stored result.
    Outside of a job the agent runs as usual.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="vox-mesh",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=JSON_CODEC,
        serialization_failure=lambda error: GiveUp(f"a result has no JSON: {error}"),
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        sequential_tools_in_durable_context=True,  # steps have an order
        tool_config_key="vox_mesh",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        mcp_step: StepOptions | None = None,
        event_step: StepOptions | None = None,
    ) -> None:
        """`models`: others that a run may choose. `name`: in the names of steps, by default the agent's.

        The options are those of the steps of each sort; a tool's own are its metadata `vox_mesh`, and with
        `False` it is no step.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_step: StepOptions = model_step or {}
        self._tool_step: StepOptions = tool_step or {}
        self._mcp_step: StepOptions = mcp_step or {}
        self._event_step: StepOptions = event_step or {}

    @property
    def in_durable_context(self) -> bool:
        """Return whether a job runs the agent, and not a step of that job."""
        return running_job() is not None and not _IN_STEP.get()

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same in every attempt: of the job, and the number of the run in it."""
        context = running_job()
        if context is None or not self.in_durable_context:
            return None
        _runs[context] = number = _runs.get(context, 0) + 1
        return f"{context.job.job_id}:{number}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that follows from that of the run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the run first began, so that its timeout counts from there."""
        context = running_job()
        return None if context is None or not self.in_durable_context else await context.now()

    def get_durable_operation_backend(self) -> DurableOperationBackend[StepOptions]:
        """Return what runs operations as steps."""
        config = RoleBasedOperationConfig[StepOptions](
            model=self._model_step,
            event=self._event_step,
            capability={},
            tool=self._tool_step,
            resolve_tool=self._step_of_tool,
        )
        return StepBackend(agent_name=self.name, config=config)

    def _step_of_tool(
        self, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        base = self._toolset_base_config(getattr(operation_id, "toolset_kind", "function"))
        found = self._build_resolve_tool_config(base)(cast(Any, tool), tool_name)
        return cast(StepOptions | Literal[False], found)

    def _toolset_base_config(self, kind: ToolsetKind) -> StepOptions:
        return self._mcp_step if kind == "mcp" else self._tool_step


class StepBackend(JournalCallableOperationBackend[StepOptions]):
    """Runs each operation as a step of the present job."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Run an operation, or return its stored result."""
        context = running_job()
        assert context is not None, "operations are durable in jobs only"
        # As text: the numbers and the depth of what a model or a tool returns are not limited.
        return json.loads(await context.step(name, _step_of(body), returns=str, **(config or {})))


def _step_of(body: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[str]]:
    async def step() -> str:
        token = _IN_STEP.set(True)
        try:
            return json.dumps(await body())
        except UserError as error:  # the program is wrong: another attempt would find the same
            raise GiveUp(f"{type(error).__name__}: {error}") from error
        finally:
            _IN_STEP.reset(token)

    return step
