"""The sections of `vox-mesh --help`, and the commands in each."""

from __future__ import annotations

from typing import Final

SECTIONS: Final = {
    "Everyday": ("init", "setup", "status", "lock", "send", "inbox", "job", "workflow", "agents"),
    "Operate": (
        *(
            "up",
            "worker",
            "kind",
            "cron",
            "rule",
            "route",
            "roles",
            "grant",
            "approvals",
            "nodes",
            "guard",
            "git",
        ),
        *("server", "join", "db", "token", "trust", "config"),
    ),
    "Agents": (
        "hooks",
        "mcp",
    ),
    "Inspect": (
        "console",
        "attention",
        "scopes",
        "top",
        "doctor",
        "messages",
        "conflicts",
        "oplog",
        "help",
        "completion",
    ),
    "Rhythm": ("beat", "rhythm", "score", "budget", "ucxl"),
}
"""The names in the order in which they are shown; a test checks that each command has its place."""
