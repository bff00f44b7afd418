"""Suggestions: the command that was probably meant by a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_SCHEDULE: Final = "schedule --wait -- COMMAND"

_MEANT: Final = {
    "vox-mesh": {"message": "send", "receive": "inbox", "run": f"job {_SCHEDULE}", "start": "up"},
    "vox-mesh job": {
        **dict.fromkeys(("add", "create", "run", "start", "submit"), _SCHEDULE),
        **dict.fromkeys(("cancel", "delete", "kill", "remove", "rm", "stop"), "abort"),
        **dict.fromkeys(("get", "info", "status"), "show"),
        "ls": "list",
    },
    "vox-mesh lock": {
        **dict.fromkeys(("get", "lock", "take"), "acquire"),
        **dict.fromkeys(("drop", "free", "unlock"), "release"),
        "ls": "list",
    },
}
"""What other programs call commands of these groups, and the command here."""


def suggestion(group: str, name: str, commands: Iterable[str]) -> str:
    """Return a question after the message that a group has no command of a name; empty if none is near."""
    meant = _MEANT.get(group, {}).get(name.lower())
    near = [meant] if meant else get_close_matches(name.lower(), commands, 1)
    return f": did you mean `{group} {near[0]}`?" if near else ""
