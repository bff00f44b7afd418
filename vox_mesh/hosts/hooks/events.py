"""Events of hosts in one form, whichever host sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_PATHS: Final = 100
"""The paths of one edit that are checked; an edit of more is refused."""

MAX_TEXT: Final = 64 * 1_024
"""The longest command and path that is looked at."""

_MAX_NAME: Final = 256

USAGE: Final = "vox_mesh_usage"
"""The field in which the script sends the tokens that a session has used, by model."""


class EventKind(StrEnum):
    """What has happened, or is about to."""

    SESSION_START = "session_start"
    """Also after a compaction: the agent has forgotten what it was shown."""

    PROMPT = "prompt"
    BEFORE_EDIT = "before_edit"
    BEFORE_SHELL = "before_shell"
    AFTER_TOOL = "after_tool"
    STOP = "stop"
    SESSION_END = "session_end"
    OTHER = "other"


@dataclass(frozen=True)
class HookEvent:
    """An event of a host. Everything in it was written by the host or its model: it is data."""

    kind: EventKind
    name: str = ""
    """The host's own name of it."""

    session_id: str = ""
    cwd: str = ""
    paths: Sequence[str] = ()
    """The paths that are about to be changed, as given."""

    command: str = ""
    """The command line that is about to run."""

    folder: str = ""
    """Where it runs, if not in `cwd`."""

    is_reminded: bool = False
    """Whether the agent goes on because a hook has kept it from stopping."""

    usage: Mapping[str, Any] | None = None
    """The tokens that the session has used, by model, as the script has counted them."""


def text_at(document: object, *names: str) -> str:
    """Return the first of these fields that is a text, cut at `MAX_TEXT`; empty if none is."""
    if isinstance(document, Mapping):
        for name in names:
            value = document.get(name)
            if isinstance(value, str) and value:
                return value[:MAX_TEXT]
    return ""


def name_at(document: object, *names: str) -> str:
    """Return the first of these fields that is a text, as a short name."""
    return text_at(document, *names)[:_MAX_NAME]


def object_at(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first of these fields that is an object; an empty one if none is."""
    for name in names:
        value = document.get(name)
        if isinstance(value, Mapping):
            return value
    return {}
