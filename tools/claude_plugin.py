"""Write the plugin for Claude Code from the sources of `vox-mesh setup`: the same hooks, server and skill.

`python -m tools.claude_plugin`
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vox_mesh.hosts.setup.hook_plan import SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.claude import CLAUDE
from vox_mesh.hosts.setup.installer import packaged_script
from vox_mesh.hosts.setup.instructions import skill_text
from vox_mesh.hosts.setup.mcp_entry import SERVER, McpPlan

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path("plugins", "vox-mesh")
"""The folder of the plugin, from the root of the repository."""

_MARKETPLACE: Final = Path(".claude-plugin", "marketplace.json")
_RUN: Final = "run.sh"
_NAME: Final = "vox-mesh"
_NOWHERE: Final = Path("/nowhere")
_AUTHOR: Final = {"name": "vox-mesh"}
_DESCRIPTION: Final = "Locks, messages and jobs for the AI agents that share a repository"

_RUN_TEXT: Final = f"""\
#!/bin/sh
# Calls the hook script for the mesh of the project. A project without a mesh is left alone.
home=${{VOX_MESH_HOME:-}}
if [ -z "$home" ]; then
    common=$(git -C "$CLAUDE_PROJECT_DIR" rev-parse --path-format=absolute --git-common-dir 2> /dev/null)
    case $common in
        */.git) home=${{common%/.git}}/.vox ;;
        *) home=$CLAUDE_PROJECT_DIR/.vox ;;
    esac
fi
if [ ! -d "$home" ] || ! command -v python3 > /dev/null; then
    echo "{{}}"
    exit 0
fi
exec python3 -IS "${{0%/*}}/{SCRIPT}" claude --agent claude \\
    --home "$home" --project "$CLAUDE_PROJECT_DIR" "$@"
"""


def plugin_files() -> dict[Path, str]:
    """Return the text of every file of the plugin, by its path in the repository."""
    return {
        _MARKETPLACE: _json(_marketplace()),
        FOLDER / ".claude-plugin" / "plugin.json": _json(_manifest()),
        FOLDER / ".mcp.json": _json(_servers()),
        FOLDER / "hooks" / "hooks.json": _json(_hooks()),
        FOLDER / "hooks" / _RUN: _RUN_TEXT,
        FOLDER / "hooks" / SCRIPT: packaged_script(),
        FOLDER / "skills" / _NAME / "SKILL.md": skill_text(),
    }


def _manifest() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "name": _NAME,
        "version": project["version"],
        "description": _DESCRIPTION,
        "author": _AUTHOR,
        "license": project["license"],
        "keywords": ["agents", "locks", "messages", "jobs", "mcp"],
    }


def _marketplace() -> dict[str, Any]:
    plugin = {"name": _NAME, "source": f"./{FOLDER}", "description": _DESCRIPTION}
    return {"name": _NAME, "owner": _AUTHOR, "description": _DESCRIPTION, "plugins": [plugin]}


def _servers() -> dict[str, Any]:
    """Return the entry of the server for all projects, which names no path."""
    plan = McpPlan("claude", "claude", _NOWHERE, _NOWHERE, for_user=True)
    (part,) = plan.parts()
    servers: dict[str, Any] = json.loads(part.put(None))
    assert SERVER in servers["mcpServers"]
    return servers


def _hooks() -> dict[str, Any]:
    """Return the handlers of an installation, with the commands of the plugin."""
    plan = HookPlan("claude", _NOWHERE, "python3")
    document: dict[str, Any] = json.loads(CLAUDE.put(None, plan))
    for handler in _handlers(document):
        waits = ["--wait"] if "--wait" in handler["command"] else []
        # With `args`, no shell reads the path.
        handler |= {"command": "sh", "args": [f"${{CLAUDE_PLUGIN_ROOT}}/hooks/{_RUN}", *waits]}
    return {"description": _DESCRIPTION, **document}


def _handlers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for groups in document["hooks"].values():
        for group in groups:
            yield from group["hooks"]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in plugin_files().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)
