"""Help: agents ask each other for it, promise it, answer, and withdraw promises."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Operations, RequestModel, Text
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.model.grants.capability import SEND
from vox_mesh.model.rhythm.claims import MAX_TASK
from vox_mesh.model.rhythm.promises import MAX_HELP_BEATS, MAX_ON_FAIL, MAX_REASON, HelpThread
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import current_agent

HELP: Final = Operations("help")

_Beats = Annotated[int, Field(ge=1, le=MAX_HELP_BEATS)]


class HelpRequest(RequestModel):
    """A request for help to an agent or a role; a promise or an answer is due within beats, by default a bar.

    `agent` is the asker, by default the one that the header `Vox-Agent` names.
    """

    to: Text
    body: Any
    agent: OwnAgent | None = None
    within_beats: _Beats | None = None
    task: Annotated[str, Field(max_length=MAX_TASK)] = ""


class PromiseRequest(RequestModel):
    """A promise: the beats to an answer, the beats after which the thread closes, and a fallback."""

    promise_beats: _Beats
    fail_after_beats: _Beats | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] = 1.0
    on_fail: Annotated[str, Field(max_length=MAX_ON_FAIL)] = ""
    agent: OwnAgent | None = None


class AnswerRequest(RequestModel):
    """An answer to a request for help."""

    body: Any
    agent: OwnAgent | None = None


class WithdrawRequest(RequestModel):
    """Why a promise is withdrawn."""

    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""
    agent: OwnAgent | None = None


@HELP.post("/v1/rhythm/help", status=HTTPStatus.CREATED, needs=SEND, opens="messages")
async def ask_for_help(mesh: MeshServices, body: HelpRequest) -> HelpThread:
    """Ask an agent or a role for help: open a thread, and send the request."""
    return await mesh.rhythm.help.ask(
        body.to, body.body, sender=_agent(body.agent), within_beats=body.within_beats, task=body.task
    )


@HELP.get("/v1/rhythm/help/{thread}")
async def show_help(mesh: MeshServices, thread: Text) -> HelpThread:
    """Show a help thread; `answer_id` is the message with the answer."""
    return await mesh.rhythm.help.state(thread)


@HELP.post("/v1/rhythm/help/{thread}/promise", needs=SEND, opens="messages")
async def promise_help(mesh: MeshServices, thread: Text, body: PromiseRequest) -> HelpThread:
    """Promise an answer within a number of beats; one agent may, and only that agent may answer then."""
    await mesh.rhythm.help.promise(
        thread,
        promise_beats=body.promise_beats,
        fail_after_beats=body.fail_after_beats,
        confidence=body.confidence,
        on_fail=body.on_fail,
        sender=_agent(body.agent),
    )
    return await mesh.rhythm.help.state(thread)


@HELP.post("/v1/rhythm/help/{thread}/answer", needs=SEND, opens="messages")
async def answer_help(mesh: MeshServices, thread: Text, body: AnswerRequest) -> HelpThread:
    """Answer a request for help: a promise is kept if it is in time, else broken."""
    await mesh.rhythm.help.answer(thread, body.body, sender=_agent(body.agent))
    return await mesh.rhythm.help.state(thread)


@HELP.post("/v1/rhythm/help/{thread}/withdraw", needs=SEND, opens="messages")
async def withdraw_promise(mesh: MeshServices, thread: Text, body: WithdrawRequest) -> HelpThread:
    """Withdraw a promise: it counts as broken, and the asker stops waiting."""
    await mesh.rhythm.help.withdraw(thread, reason=body.reason, sender=_agent(body.agent))
    return await mesh.rhythm.help.state(thread)


def _agent(named: str | None) -> str:
    """Return the agent that acts, by default the one that the client named for the log."""
    agent = named or current_agent()
    if agent is None:
        raise BadValue("no agent given", hint="send the header `Vox-Agent: NAME`, or `agent` in the body")
    return agent
