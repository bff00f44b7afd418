"""Codex: the form of Claude Code. Only `deny` counts, and a field that it does not know is an error."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import HookEvent
from vox_mesh.hosts.hooks.formats import claude

parse = claude.parse

_WITHOUT_ANSWER: Final = "SessionEnd"


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the host expects."""
    return {} if event.name == _WITHOUT_ANSWER else claude.render(event, decision)
