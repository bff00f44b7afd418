"""Copilot CLI: hooks by command, in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.hosts.setup.hook_handlers import HandlerLayout, HookHandler
from vox_mesh.hosts.setup.hook_plan import HookPlan
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, JsonHost

_EVENTS: Final = (
    *("sessionStart", "userPromptSubmitted", "preToolUse", "postToolUse", "agentStop", "sessionEnd"),
)


def _handlers(plan: HookPlan) -> Sequence[HookHandler]:
    return [HookHandler(event, _command(plan, may_deny=event == "preToolUse")) for event in _EVENTS]


def _command(plan: HookPlan, *, may_deny: bool) -> Mapping[str, Any]:
    return {"type": "command", "bash": plan.command(may_deny=may_deny), "timeoutSec": TIMEOUT_S}


COPILOT: Final = JsonHost(
    name="copilot",
    title="Copilot CLI",
    project_file=".github/hooks/vox-mesh.json",
    user_folder=".copilot",
    user_name="hooks/vox-mesh.json",
    folder_variable="COPILOT_HOME",
    layout=HandlerLayout(is_grouped=False, made_with={"version": 1}),
    make_handlers=_handlers,
    advice="Copilot CLI reads hooks of a repository from the folder in which it is started",
)
