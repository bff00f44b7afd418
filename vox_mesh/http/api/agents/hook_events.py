"""Events of the hosts of agents: what is about to be done, and what the host is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from vox_mesh.hosts.hooks.engine import engine_of, own_agent
from vox_mesh.hosts.hooks.options import HookOptions
from vox_mesh.http.admission import Load
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, Operations, RequestModel, Wait
from vox_mesh.http.principals.needs import NOTHING
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import acting_as, current_agent

HOOK_EVENTS: Final = Operations("hooks")

HostName = Literal["claude", "codex", "gemini", "cursor", "copilot", "opencode"]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=4_096, pattern="^/[^\\x00]*$")]


class HookQuery(RequestModel):
    """How the hook was installed.

    `auto`: free paths are locked for 10 minutes. `strict`: the edit is denied where the mesh can't answer.
    `project`: the absolute path of the project, by default that of the folder in which the host works.
    """

    auto: bool = False
    strict: bool = False
    project: AbsolutePath | None = None

    @property
    def options(self) -> HookOptions:
        """The options of the hook."""
        return HookOptions(self.auto, self.strict, self.project or "")


class HookEventRequest(RequestModel):
    """An event, as the host sends it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def raw(self) -> dict[str, Any]:
        """The fields of the event."""
        return dict(self.model_extra or {})


class HookWaitQuery(RequestModel):
    """How long to wait for mail, by default not at all."""

    timeout: Wait = 0.0

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.timeout


@HOOK_EVENTS.post("/v1/hooks/{host}", needs=NOTHING)
async def answer_hook(
    mesh: MeshServices, host: HostName, query: HookQuery, body: HookEventRequest
) -> dict[str, Any]:
    """Answer an event of an agent's host in the form that the host expects; `{}` says nothing."""
    with _acting_agent(host, body.raw) as agent:
        return await engine_of(mesh).answer(host, body.raw, agent, query.options)


@HOOK_EVENTS.post("/v1/hooks/{host}/wait", needs=NOTHING, takes_s=MAX_WAIT_S + CALL_S, load=Load.WAIT)
async def wait_for_mail(
    mesh: MeshServices, host: HostName, query: HookWaitQuery, body: HookEventRequest
) -> dict[str, Any]:
    """Wait for mail of an agent that has stopped: the text for it, or `superseded` by a newer waiter."""
    with _acting_agent(host, body.raw) as agent:
        return await engine_of(mesh).wait(host, body.raw, agent, query.timeout)


@contextmanager
def _acting_agent(host: str, raw: dict[str, Any]) -> Iterator[str]:
    """Return the agent that acts; on the owner's side without a name, it is named after its session."""
    named = current_agent()
    if named is not None:
        yield named
        return
    agent = own_agent(host, raw)
    with acting_as(agent):
        yield agent
