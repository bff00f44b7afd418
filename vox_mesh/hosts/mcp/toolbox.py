"""The toolbox: runs a tool for a caller, and makes errors and unread mail part of its result."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.hosts.mcp.definitions import ToolDefinition
from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.hosts.mcp.rows import clip
from vox_mesh.hosts.mcp.tool_call import Tool, ToolCall
from vox_mesh.hosts.mcp.tools import locks, mail, operator, overview, work
from vox_mesh.hosts.mcp.unread import UnreadMail

_log = logging.getLogger(__name__)

_MAX_ERROR: Final = 2_000
_TELL_NO_UNREAD: Final = frozenset({"brief", "inbox"})
"""Tools whose answers say it anyway."""

_WRONG_ARGUMENTS: Final = frozenset({"bad_body", "bad_path", "bad_query"})
_PLACE: Final = re.compile(r"^in the (?:body|path|query): ")
_HINTS: Final = {
    ("unlock", "not_known"): "see your locks with brief; without keys, all are released",
    ("ack", "not_known"): "pass ids from inbox",
    ("report", "not_known"): "pass job and token from take",
    ("look", "not_known"): "list what there is with look first",
}
"""What to do, by the tool and the code of the error, instead of a command."""

_TOOLS: Final[dict[str, Tool]] = {
    "brief": overview.brief,
    "lock": locks.lock,
    "unlock": locks.unlock,
    "send": mail.send,
    "inbox": mail.inbox,
    "ack": mail.ack,
    "submit": work.submit,
    "take": work.take,
    "report": work.report,
    "look": overview.look,
    "resolve": operator.resolve,
    "break": operator.break_lock,
    "pause": operator.pause,
    "budget": operator.budget,
}


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool: an object, or one line that says what went wrong."""

    content: dict[str, Any] | None
    error: str | None = None

    @property
    def text(self) -> str:
        """The result as text."""
        return self.error if self.error is not None else orjson.dumps(self.content).decode()


class Toolbox:
    """The tools of a profile."""

    def __init__(self, profile: Profile, unread: UnreadMail | None = None) -> None:
        self.definitions: dict[str, ToolDefinition] = profile.tools
        self._unread = unread or UnreadMail()

    async def call(self, name: str, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        """Run a tool and return its result; it never raises an error of the mesh.

        Raises `KeyError` if the profile has no such tool.
        """
        definition = self.definitions[name]
        try:
            call = ToolCall(caller, definition.check(arguments))
            content = await _TOOLS[name](call)
        except OperationFailed as error:
            return ToolResult(None, error_line(error.code, *_in_words_of_tools(name, error)))
        except BadValue as error:
            return ToolResult(None, error_line("bad_argument", str(error), error.hint))
        if name not in _TELL_NO_UNREAD and (unread := await self._unread.of(caller)):
            content = {**content, "unread": unread}
        return ToolResult(content)


def _in_words_of_tools(tool: str, error: OperationFailed) -> tuple[str, str]:
    """Return what happened and what to do, for a model that knows tools and neither commands nor HTTP."""
    if error.code not in _WRONG_ARGUMENTS:
        return error.detail, _HINTS.get((tool, error.code), error.hint)
    detail = _PLACE.sub("", error.detail)
    if "should match pattern" in detail:
        detail = f"{detail.partition(':')[0]} must be an id as the answers of tools have it"
    return detail, f"correct the arguments of {tool}"


def error_line(code: str, detail: str, hint: str) -> str:
    """Return an error as one line: its code, what happened, and what to do."""
    text = f"{code}: {detail.rstrip('.')}" + (f". {hint[:1].upper()}{hint[1:]}" if hint else "")
    return clip(text, _MAX_ERROR) or code
