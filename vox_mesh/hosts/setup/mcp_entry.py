"""The entry of our MCP server in the configuration of a host."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.documents.json_document import JsonDocument
from vox_mesh.hosts.setup.documents.marked_block import MarkedBlock
from vox_mesh.hosts.setup.file_part import FilePart
from vox_mesh.hosts.setup.git_exclude import is_tracked

SERVER: Final = "vox-mesh"
"""The name of the server in all hosts."""

AGENT: Final = "VOX_AGENT_ID"
"""The variable with the name of the agent."""

_EXPANDING: Final = ("claude", "gemini")
"""Hosts that expand variables with a default in the variables of a server."""

_DEFAULT: Final = re.compile(rf"\$\{{{AGENT}:-(.*)\}}")
_PROGRAM: Final = "vox-mesh"
_BLOCK: Final = MarkedBlock("mcp")
_SERVERS: Final = ("mcpServers", SERVER)

_PROJECT_FILES: Final = {
    "claude": ((".mcp.json", _SERVERS),),
    "codex": ((".codex/config.toml", ()),),
    "gemini": ((".gemini/settings.json", _SERVERS),),
    "cursor": ((".cursor/mcp.json", _SERVERS),),
    "opencode": (("opencode.json", ("mcp", SERVER)),),
    "copilot": ((".github/mcp.json", _SERVERS), (".vscode/mcp.json", ("servers", SERVER))),
}
_USER_FILES: Final = {
    "claude": ((".claude.json", _SERVERS),),
    "codex": ((".codex/config.toml", ()),),
    "gemini": ((".gemini/settings.json", _SERVERS),),
    "cursor": ((".cursor/mcp.json", _SERVERS),),
    "opencode": ((".config/opencode/opencode.json", ("mcp", SERVER)),),
    "copilot": ((".copilot/mcp-config.json", _SERVERS),),
}
"""The files of each host below a project and below a user's folder, and the entry's place in each; a file
without one is TOML, and has a block. Copilot's are for its command line and for VS Code."""


@dataclass(frozen=True)
class McpEntry:
    """An entry in one file of a host, which exists or not."""

    place: tuple[str, ...]
    value: Mapping[str, Any]

    def put(self, text: str | None) -> str:
        """Return the file's text with the entry. Raises `DocumentRefused` if it can't be edited."""
        if not self.place:
            return self._put_block(text)
        if text is None:
            return JsonDocument.made_of(_nested(self.place, self.value)).text
        document = JsonDocument(text)
        if _at(document.value, self.place) == self.value:
            return text  # also if the user has formatted it
        return document.with_member(self.place, self.value).text

    def take(self, text: str) -> str | None:
        """Return the file's text without the entry; `None` if the file was made for it."""
        if not self.place:
            return _BLOCK.take(text)
        document = JsonDocument(text)
        if _at(document.value, self.place) is None:
            return text
        left = document.without(self.place)
        return None if left is None else left.text

    def _put_block(self, text: str | None) -> str:
        made = _BLOCK.put(text, _toml(self.value))
        try:
            tomllib.loads(made)
        except tomllib.TOMLDecodeError as error:
            what = f"the entry [mcp_servers.{SERVER}] can't be added to the file: {error}"
            raise DocumentRefused(what, hint="remove an entry of that name, or correct the file") from None
        return made


@dataclass(frozen=True)
class McpPlan:
    """What the MCP server of a host is started with."""

    host: str
    agent: str
    home: Path
    """The absolute home of the mesh."""

    base: Path
    """The folder below which the files of the host are: a project, or that of the user."""

    for_user: bool = False

    def parts(self) -> list[FilePart]:
        """Return the entries in the files of the host.

        Files of a project name paths of this machine, and git is to ignore them. In a file that git tracks,
        the entry names none, nor does it in the files of a user, which are for all projects.
        """
        return [self._part(name, place) for name, place in _files(self.host, for_user=self.for_user)]

    def _part(self, name: str, place: tuple[str, ...]) -> FilePart:
        is_shared = self.for_user or is_tracked(self.base, name)
        entry = McpEntry(place, self._value(place, is_shared=is_shared))
        file = ConfigFile(self.base, self.base / name, follows_all=self.for_user)
        return FilePart("MCP server", file, entry.put, entry.take, None if is_shared else name)

    def _value(self, place: tuple[str, ...], *, is_shared: bool) -> dict[str, Any]:
        program = _PROGRAM if is_shared else server_program()
        variables = self._variables(is_shared=is_shared)
        match self.host:
            case "opencode":
                command = [program, "mcp"]
                return {"type": "local", "command": command, "enabled": True, "environment": variables}
            case "copilot" if place == _SERVERS:
                plain = {"type": "local", "command": program, "args": ["mcp"], "env": variables}
                return {**plain, "tools": ["*"]}
            case "copilot" | "claude":
                return {"type": "stdio", "command": program, "args": ["mcp"], "env": variables}
            case _:
                return {"command": program, "args": ["mcp"], "env": variables}

    def _variables(self, *, is_shared: bool) -> dict[str, str]:
        """Return the variables; the server finds the token of the agent in the home.

        Where the host expands variables, the agent of a session may be another one.
        """
        agent = f"${{{AGENT}:-{self.agent}}}" if self.host in _EXPANDING else self.agent
        return {AGENT: agent} if is_shared else {AGENT: agent, "VOX_MESH_HOME": str(self.home)}


def _files(host: str, *, for_user: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (_USER_FILES if for_user else _PROJECT_FILES)[host]


def configured_agent(host: str, base: Path, *, for_user: bool) -> str | None:
    """Return the agent that an entry of ours in the files of a host names; `None` if there is none."""
    for name, place in _files(host, for_user=for_user):
        try:
            text = ConfigFile(base, base / name, follows_all=for_user).read()
            found = None if text is None else _variables_in(text, place).get(AGENT)
        except DocumentRefused:  # which is said where the file is to be edited
            continue
        if isinstance(found, str):
            expanded = _DEFAULT.fullmatch(found)
            return expanded[1] if expanded is not None else found
    return None


def has_tracked_file(host: str, project: Path) -> bool:
    """Return whether git tracks a file with the MCP servers of a host: others may have written it."""
    return any(is_tracked(project, name) for name, _ in _files(host, for_user=False))


def _variables_in(text: str, place: tuple[str, ...]) -> Mapping[str, Any]:
    if place:
        entry = _at(JsonDocument(text).value, place)
    else:
        try:
            entry = _at(tomllib.loads(_BLOCK.content(text) or ""), ("mcp_servers", SERVER))
        except tomllib.TOMLDecodeError:
            return {}
    found = _at(entry, ("env",)) or _at(entry, ("environment",))
    return found if isinstance(found, Mapping) else {}


def server_program() -> str:
    """Return how hosts start this installation: by its name if every shell finds it, else by its path."""
    own = Path(sys.prefix) / "bin" / _PROGRAM
    found = shutil.which(_PROGRAM)
    if found is None or not own.exists():
        return str(own if own.exists() else found or _PROGRAM)
    # In an active virtual environment it is found, but not by a host that was started elsewhere.
    is_linked = Path(found).parent != own.parent and Path(found).resolve() == own.resolve()
    return _PROGRAM if is_linked or sys.prefix == sys.base_prefix else str(own)


def _nested(place: tuple[str, ...], value: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = dict(value)
    for name in reversed(place):
        nested = {name: nested}
    return nested


def _at(value: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _toml(value: Mapping[str, Any]) -> str:
    """Return the table of the server; JSON's strings and arrays of strings are TOML's, too."""
    variables = [f"{name} = {json.dumps(text)}" for name, text in value["env"].items()]
    lines = [
        f"[mcp_servers.{SERVER}]",
        f"command = {json.dumps(value['command'])}",
        f"args = {json.dumps(value['args'])}",
        "",
        f"[mcp_servers.{SERVER}.env]",
        *variables,
    ]
    return "\n".join(lines) + "\n"
