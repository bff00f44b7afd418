"""Names and patterns that both readers of settings share."""

from __future__ import annotations

import re
from typing import Final

ENV_FILE: Final = ".env"
"""The file with variables, in the current folder."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The names of nodes and repositories."""

PLAIN_FIELDS: Final = frozenset(
    {
        *("enabled", "node_id", "http", "scope_id", "repository_id", "agent_id", "log_format", "tick"),
        "command_server",
        *("message_retention", "worker_concurrency", "db_driver", "db_replica", "db_max_stale_ms"),
        *("db_circuit_breaker", "db_deadline", "db_request_timeout", "spool_max_bytes"),
    }
)
"""The settings that a `.env` file may set without the user's approval. All others decide where data and
tokens go, what runs, who can connect, or which files are read and written."""
