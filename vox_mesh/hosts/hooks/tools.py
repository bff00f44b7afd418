"""Tools of hosts: which of them edit files or run commands, and what they are about to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.hosts.hooks.events import EventKind, text_at
from vox_mesh.hosts.hooks.patches import BEGIN, patched_paths

_EDITORS: Final = frozenset(
    {
        *("edit", "write", "multiedit", "notebookedit", "create", "delete", "replace", "patch"),
        *("apply_patch", "write_file", "edit_file", "delete_file", "search_replace", "str_replace"),
        *("str_replace_editor", "str_replace_based_edit_tool", "editfiles"),
    }
)
_SHELLS: Final = frozenset(
    {
        *("bash", "powershell", "shell", "local_shell", "exec_command", "run_shell_command"),
        *("run_in_terminal", "terminal", "run_command"),
    }
)
_PATHS: Final = ("file_path", "filePath", "path", "notebook_path", "target_file", "absolute_path")
_LISTS: Final = ("files", "file_paths", "paths")
_PATCHES: Final = ("patch", "patchText", "input", "command")
_COMMANDS: Final = ("command", "cmd")
_FOLDERS: Final = ("workdir", "working_directory", "dir_path", "directory", "cwd")
_VIEW: Final = "view"


class ToolUse(NamedTuple):
    """What a tool is about to do."""

    kind: EventKind = EventKind.OTHER
    paths: tuple[str, ...] = ()
    command: str = ""
    folder: str = ""
    """Where the command runs, if the tool is given a folder."""


def tool_use(name: str, given: object) -> ToolUse:
    """Return what a tool is about to do with its arguments; one of an MCP server counts by its own name."""
    tool = name.rpartition("__")[2].lower()
    if tool in _EDITORS:
        return _edit(given)
    return _run(given) if tool in _SHELLS else ToolUse()


def _edit(given: object) -> ToolUse:
    if isinstance(given, str):
        return ToolUse(EventKind.BEFORE_EDIT, tuple(patched_paths(given)))
    if not isinstance(given, Mapping):
        return ToolUse(EventKind.BEFORE_EDIT)
    if given.get("command") == _VIEW:
        return ToolUse()
    patched = (patched_paths(each) for name in _PATCHES if BEGIN in (each := _words(given.get(name))))
    listed = (each for name in _LISTS for each in _texts(given.get(name)))
    found = [text_at(given, *_PATHS), *listed, *(path for paths in patched for path in paths)]
    return ToolUse(EventKind.BEFORE_EDIT, tuple(dict.fromkeys(path for path in found if path)))


def _run(given: object) -> ToolUse:
    if not isinstance(given, Mapping):
        return ToolUse(EventKind.BEFORE_SHELL, command=_words(given))
    command = next((text for name in _COMMANDS if (text := _words(given.get(name)))), "")
    folder = text_at(given, *_FOLDERS)
    if BEGIN in command:
        return ToolUse(EventKind.BEFORE_EDIT, tuple(patched_paths(command)), command, folder)
    return ToolUse(EventKind.BEFORE_SHELL, (), command, folder)


def _words(value: Any) -> str:
    """Return a text; the words of a list as the last of them, which is the script of `sh -c`, or joined."""
    if isinstance(value, str):
        return value
    words = _texts(value)
    is_script = len(words) > 2 and words[-2].startswith("-") and words[-2].endswith("c")
    return words[-1] if is_script else " ".join(words)


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
