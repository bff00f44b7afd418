"""Hosts of agents, as hooks show them: their recorded events, and how they read an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.nodes.serving import ServedNode

PAYLOADS: Final = Path(__file__).parent / "payloads"
RECORDED: Final = sorted((path.parent.name, path.stem) for path in PAYLOADS.glob("*/*.json"))
"""The hosts and names of all recorded events."""

SESSION: Final = "5f0c3a1e-9d1b-4a8e-9d55-1c2f7d0e8a11"
"""The session in all recorded events."""


def payload(host: str, event: str, project: Path, *, file: Path | str = "", command: str = "") -> Any:
    """A recorded event, with this project, file and command in it."""
    values = {"$PROJECT": str(project), "$FILE": str(file), "$COMMAND": command, "$HOME": str(Path.home())}
    return _filled(json.loads((PAYLOADS / host / f"{event}.json").read_text()), values)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(name, text)
    return value


def _at(*names: str) -> Callable[[Any], str]:
    """How a text is read that stands at this place of an answer."""

    def read(answer: Any) -> str:
        for name in names:
            answer = answer.get(name, {})
        return answer if isinstance(answer, str) else ""

    return read


def _if(sign: Callable[[Any], str], value: str, text: Callable[[Any], str]) -> Callable[[Any], str]:
    """How a text is read that counts only with a sign of this value."""
    return lambda answer: text(answer) if sign(answer) == value else ""


_SPECIFIC: Final = "hookSpecificOutput"


@dataclass(frozen=True)
class Host:
    """A host, and how it reads an answer."""

    name: str
    denied: Callable[[Any], str]
    """Why it must not go on; empty if it may."""

    context: Callable[[Any], str]
    note: Callable[[Any], str]
    stays: Callable[[Any], str]
    """Why its agent goes on instead of stopping; empty if it stops."""


_IN_CLAUDES_FORM: Final = (
    _if(_at(_SPECIFIC, "permissionDecision"), "deny", _at(_SPECIFIC, "permissionDecisionReason")),
    _at(_SPECIFIC, "additionalContext"),
    _at("systemMessage"),
    _if(_at("decision"), "block", _at("reason")),
)
HOSTS: Final = {
    host.name: host
    for host in (
        Host("claude", *_IN_CLAUDES_FORM),
        Host("codex", *_IN_CLAUDES_FORM),
        Host(
            "gemini",
            _if(_at("decision"), "deny", _at("reason")),
            _at(_SPECIFIC, "additionalContext"),
            _at("systemMessage"),
            _if(_at("decision"), "block", _at("reason")),
        ),
        Host(
            "cursor",
            _if(_at("permission"), "deny", _at("agent_message")),
            _at("additional_context"),
            _if(_at("permission"), "", _at("user_message")),
            _at("followup_message"),
        ),
        Host(
            "copilot",
            _if(_at("permissionDecision"), "deny", _at("permissionDecisionReason")),
            _at("additionalContext"),
            _if(_at("type"), "progress", _at("message")),
            _if(_at("decision"), "block", _at("reason")),
        ),
        Host("opencode", _at("deny"), _at("context"), _at("note"), _at("stay")),
    )
}


@dataclass
class HookedAgent:
    """An agent whose host asks a node before it does something."""

    served: ServedNode
    host: Host
    project: Path
    agent: str | None = "bob"
    token: str | None = None
    """Its own token; without one, the owner's side names it."""

    async def ask(
        self,
        event: str,
        *,
        file: Path | str = "",
        command: str = "",
        session: str = SESSION,
        path: str = "",
        **query: str,
    ) -> Any:
        """Send a recorded event; return the answer."""
        raw = payload(self.host.name, event, self.project, file=file, command=command)
        sent = json.loads(json.dumps(raw).replace(SESSION, session))
        return await self.send(sent, path=path, **query)

    async def send(self, raw: Any, *, path: str = "", **query: str) -> Any:
        """Send an event; return the answer."""
        headers = {} if self.agent is None or self.token is not None else {"Vox-Agent": self.agent}
        more: dict[str, Any] = {} if self.token is None else {"token": self.token}
        answer = await self.served.ask(
            "POST", f"/v1/hooks/{self.host.name}{path}", raw, headers=headers, params=query, **more
        )
        assert answer.status_code == 200, answer.text
        return answer.json()
