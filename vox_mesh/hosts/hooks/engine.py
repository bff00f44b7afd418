"""The hook engine: answers the events of hosts, in the form each of them expects."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from vox_mesh.errors import MeshError
from vox_mesh.hosts.hooks.commits import check_commits
from vox_mesh.hosts.hooks.decisions import NOTHING, HookDecision
from vox_mesh.hosts.hooks.edits import check_edit
from vox_mesh.hosts.hooks.events import EventKind, HookEvent
from vox_mesh.hosts.hooks.formats import claude, codex, copilot, cursor, gemini, opencode
from vox_mesh.hosts.hooks.mail import MailWaiters
from vox_mesh.hosts.hooks.moments import SessionMoments
from vox_mesh.hosts.hooks.options import HookOptions
from vox_mesh.hosts.hooks.sessions import HookSession, HookSessions
from vox_mesh.runtime.services import MeshServices

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 2.0
"""The deadline of an answer: hosts and the script wait a little longer."""

FORMATS: Final[Mapping[str, ModuleType]] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
    "cursor": cursor,
    "copilot": copilot,
    "opencode": opencode,
}
_BEFORE: Final = frozenset({EventKind.BEFORE_EDIT, EventKind.BEFORE_SHELL})
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9]+")
_SESSION_SIGNS: Final = 8

Handle = Callable[[HookSession, HookEvent, HookOptions], Awaitable[HookDecision]]


class HookEngine:
    """Answers events. One for each node: it remembers the sessions that it hears of."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._sessions = HookSessions(lambda: mesh.clock.now_ms)
        self._waiters = MailWaiters(mesh)
        moments = SessionMoments(mesh, self._sessions)
        self._handlers: dict[EventKind, Handle] = {
            EventKind.SESSION_START: moments.start,
            EventKind.PROMPT: moments.work,
            EventKind.BEFORE_EDIT: partial(check_edit, mesh),
            EventKind.BEFORE_SHELL: partial(check_commits, mesh),
            EventKind.AFTER_TOOL: moments.work,
            EventKind.STOP: moments.stop,
            EventKind.SESSION_END: moments.end,
        }

    async def answer(
        self, host: str, raw: Mapping[str, Any], agent: str, options: HookOptions
    ) -> dict[str, Any]:
        """Return what the host is answered to an event of the agent."""
        form = FORMATS[host]
        event: HookEvent = form.parse(raw)
        handle = self._handlers.get(event.kind)
        if handle is None:
            return _rendered(form, event, NOTHING)
        session = self._sessions.seen(agent, event.session_id)
        try:
            async with asyncio.timeout(_ANSWER_S):
                decision = await handle(session, event, options)
        except (MeshError, TimeoutError) as error:
            decision = _unanswered(event, options, error)
        if decision.denied:
            _log.info("hook denied: host=%s event=%s agent=%s", host, event.kind, agent)
        return _rendered(form, event, decision)

    async def wait(self, host: str, raw: Mapping[str, Any], agent: str, timeout_s: float) -> dict[str, Any]:
        """Wait for mail of an agent that has stopped; return the text with which it is woken."""
        event: HookEvent = FORMATS[host].parse(raw)
        return await self._waiters.wait(self._sessions.seen(agent, event.session_id), timeout_s)


def _rendered(form: ModuleType, event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    answer: dict[str, Any] = form.render(event, decision)
    return answer


def _unanswered(event: HookEvent, options: HookOptions, error: BaseException) -> HookDecision:
    """Return the decision if the mesh can't answer: go on and say so, or if it is strict, deny."""
    why = error.line if isinstance(error, MeshError) else f"no answer within {_ANSWER_S:g} s"
    _log.warning("hook not answered: event=%s error=%s", event.kind, why)
    text = f"vox-mesh: locks not checked: {why}"
    if event.kind not in _BEFORE:
        return NOTHING
    return HookDecision(denied=text) if options.strict else HookDecision(note=text)


def own_agent(host: str, raw: Mapping[str, Any]) -> str:
    """Return the name of an agent that has none: its host and its session."""
    session = FORMATS[host].parse(raw).session_id
    return f"{host}-{_NOT_IN_NAME.sub('', session)[:_SESSION_SIGNS].lower() or 'agent'}"


_engines: Final[WeakKeyDictionary[MeshServices, HookEngine]] = WeakKeyDictionary()


def engine_of(mesh: MeshServices) -> HookEngine:
    """Return the engine of a node."""
    engine = _engines.get(mesh)
    if engine is None:
        engine = _engines[mesh] = HookEngine(mesh)
    return engine
