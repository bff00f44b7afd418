"""opencode: a plugin in JavaScript, which asks the script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import HookCall

_OURS: Final = "// Installed by `vox-mesh hooks install opencode`"
_COMMAND: Final = re.compile(r'^const COMMAND = (".*")$', re.MULTILINE)
_STRICT: Final = re.compile(r"^const STRICT = (?:true|false)$", re.MULTILINE)
_EVENTS: Final = ("tool.execute.before", "tool.execute.after", "chat.message", "event")


@dataclass(frozen=True)
class OpencodeHost:
    """A host whose hooks are a plugin: a file of ours as a whole."""

    name: str = "opencode"
    title: str = "opencode"
    project_file: str = ".opencode/plugin/vox-mesh.js"
    advice: str = "restart opencode: it loads plugins at its start"

    def user_file(self, environment: Mapping[str, str]) -> Path:
        chosen = environment.get("OPENCODE_CONFIG_DIR", "")
        if chosen:
            return Path(chosen) / "plugin" / "vox-mesh.js"
        base = environment.get("XDG_CONFIG_HOME", "")
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
        return folder / "opencode" / "plugin" / "vox-mesh.js"

    def put(self, text: str | None, plan: HookPlan) -> str:
        if text is not None:
            _refuse_foreign(text)
        command = plan.command(without=json.dumps({"note": MISSING_SCRIPT}), may_deny=True)
        template = files(__package__).joinpath("opencode.js").read_text()
        filled = _COMMAND.sub(lambda _: f"const COMMAND = {json.dumps(command)}", template)
        return _STRICT.sub(f"const STRICT = {json.dumps(plan.strict)}", filled)

    def take(self, text: str) -> str | None:
        return None if text.startswith(_OURS) else text

    def calls(self, text: str) -> list[HookCall]:
        found = _COMMAND.search(text)
        if found is None or not text.startswith(_OURS):
            return []
        try:
            command = str(json.loads(found[1]))
        except ValueError:
            return []
        return [HookCall(event, command) for event in _EVENTS]


def _refuse_foreign(text: str) -> None:
    if not text.startswith(_OURS):
        raise DocumentRefused("file is not of vox-mesh", hint="move it away, then run the command again")


OPENCODE: Final = OpencodeHost()
