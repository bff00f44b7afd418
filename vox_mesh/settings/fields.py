"""The table of all settings: their variables, defaults, bounds and examples, for both readers of settings."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.backends import Driver, ReplicaChoice
from vox_mesh.model.jobs.sandbox import Sandbox

ENV_FILE: Final = ".env"
"""The file with variables, in the current folder or in that of the mesh."""

PREFIX: Final = "VOX_"
"""The beginning of all variables of the mesh."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The names of nodes and repositories."""

UNIX: Final = "unix:"
"""The beginning of VOX_MESH_NODE if it is the path of a socket."""


class Kind(StrEnum):
    """The kinds of value that are not an enumeration."""

    BOOLEAN = "boolean"
    NAME = "name"
    TEXT = "text"
    INTEGER = "integer"
    SECONDS = "seconds"
    PATH = "path"
    KEY = "public key"
    LOG_FORMAT = "log format"
    ADDRESS = "address"
    SECRET = "secret"  # noqa: S105 - a kind, not a secret


class SettingField(NamedTuple):
    """A setting. The bounds of a text are those of its length."""

    variable: str
    kind: Kind | type[StrEnum]
    default: Any
    example: str
    least: float | None = None
    most: float | None = None
    is_plain: bool = False
    """Whether a `.env` file may set it without the user's approval. All others decide where data and tokens
    go, what runs, who can connect, or which files are read and written."""
    second: str | None = None
    """Another variable that sets it."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that set it; the first wins."""
        return (self.variable,) if self.second is None else (self.variable, self.second)


_BOOLEAN, _NAME, _TEXT, _INTEGER, _SECONDS, _PATH, _KEY, _LOG_FORMAT, _ADDRESS, _SECRET = Kind
_POLICY_ROOT: Final = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_OWNER: Final = "ed25519:1c5e5c1ee10a63588e5942b2dfd248a6d2178d18e1ae635fc3d650605ebb41b7"

FIELDS: Final = {
    "enabled": SettingField("VOX_MESH_ENABLED", _BOOLEAN, False, "1", is_plain=True),
    "node_id": SettingField("VOX_MESH_NODE_ID", _NAME, None, "builder-1", is_plain=True),
    "control_addr": SettingField("VOX_MESH_CONTROL_ADDR", _ADDRESS, None, "http://10.0.0.7:7400"),
    "bind": SettingField("VOX_MESH_BIND", _ADDRESS, None, "0.0.0.0:7400"),
    "http": SettingField("VOX_MESH_HTTP", _BOOLEAN, True, "0", is_plain=True),
    "ui": SettingField("VOX_MESH_UI", _BOOLEAN, True, "0", is_plain=True),
    "message_retention": SettingField(
        "VOX_MESH_MESSAGE_RETENTION", _SECONDS, 86_400.0, "1d", 1, 31_536_000, is_plain=True
    ),
    "prune_interval": SettingField("VOX_PRUNE_INTERVAL", _SECONDS, 900.0, "15m", 1, 86_400, is_plain=True),
    "worker_exec": SettingField("VOX_WORKER_EXEC", _BOOLEAN, False, "1"),
    "worker_exec_allow": SettingField(
        "VOX_WORKER_EXEC_ALLOW", _TEXT, None, "git fetch origin,/opt/tools/convert"
    ),
    "worker_exec_user": SettingField("VOX_WORKER_EXEC_USER", _TEXT, None, "vox-jobs", most=64),
    "worker_exec_sandbox": SettingField("VOX_WORKER_EXEC_SANDBOX", Sandbox, Sandbox.AUTO, "bwrap"),
    "worker_exec_limits": SettingField("VOX_WORKER_EXEC_LIMITS", _TEXT, None, "nofile=1024,as=4G"),
    "worker_exec_secrets": SettingField(
        "VOX_WORKER_EXEC_SECRETS", _TEXT, None, "API_KEY,NPM_TOKEN=/run/secrets/npm"
    ),
    "worker_agents": SettingField("VOX_WORKER_AGENTS", _PATH, None, "agents.yaml"),
    "worker_policy_roots": SettingField("VOX_WORKER_POLICY_ROOTS", _TEXT, None, _POLICY_ROOT, most=32_768),
    "worker_concurrency": SettingField("VOX_WORKER_CONCURRENCY", _INTEGER, 8, "8", 1, 1_000, is_plain=True),
    "tempo_policy": SettingField("VOX_MESH_TEMPO_POLICY", _PATH, None, "tempo.yaml"),
    "rates": SettingField("VOX_MESH_RATES", _PATH, None, "rates.yaml"),
    "scope_id": SettingField("VOX_MESH_SCOPE_ID", _TEXT, "", "acme", most=64, is_plain=True),
    "repository_id": SettingField("VOX_MESH_REPOSITORY_ID", _NAME, "default", "website", is_plain=True),
    "token": SettingField("VOX_MESH_TOKEN", _SECRET, None, "the-output-of-vox-mesh-token-random"),
    "read_token": SettingField(
        "VOX_MESH_READ_TOKEN", _SECRET, None, "another-output-of-vox-mesh-token-random"
    ),
    "metrics_token": SettingField(
        "VOX_MESH_METRICS_TOKEN", _SECRET, None, "a-third-output-of-vox-mesh-token-random"
    ),
    "agent_socket": SettingField("VOX_MESH_AGENT_SOCKET", _PATH, None, "/run/vox-mesh/agents.sock"),
    "agent_socket_group": SettingField("VOX_MESH_AGENT_SOCKET_GROUP", _TEXT, None, "vox-agents", most=64),
    "agent_uids": SettingField("VOX_MESH_AGENT_UIDS", _TEXT, None, "1001=coder,tester=tester", most=32_768),
    "rate_limit": SettingField("VOX_MESH_RATE_LIMIT", _INTEGER, 500, "500", 1, 1_000_000),
    "open_limit": SettingField("VOX_MESH_OPEN_LIMIT", _INTEGER, 100_000, "100000", 1, 1_000_000_000),
    "strict": SettingField("VOX_MESH_STRICT", _BOOLEAN, False, "1"),
    "owner_key": SettingField("VOX_MESH_OWNER_KEY", _KEY, None, _OWNER),
    "tick": SettingField("VOX_MESH_TICK", _SECONDS, 5.0, "5s", 0.05, 3_600, is_plain=True),
    "command_server": SettingField("VOX_MESH_COMMAND_SERVER", _BOOLEAN, True, "1", is_plain=True),
    "home_dir": SettingField("VOX_MESH_HOME", _PATH, Path(".vox"), ".vox"),
    "agent_id": SettingField("VOX_AGENT_ID", _TEXT, None, "planner", most=128, is_plain=True),
    "agent_key": SettingField("VOX_AGENT_KEY", _PATH, None, "/home/coder/.vox/agents/coder.pem"),
    "agent_token": SettingField("VOX_AGENT_TOKEN", _SECRET, None, "vxa1..."),
    "node": SettingField("VOX_MESH_NODE", _ADDRESS, None, "unix:/run/vox-mesh/agents.sock"),
    "log_format": SettingField("VOX_LOG_FORMAT", _LOG_FORMAT, "text", "json", is_plain=True),
    "db_url": SettingField(
        "VOX_DB_URL", _ADDRESS, None, "libsql://my-db.turso.io", second="TURSO_DATABASE_URL"
    ),
    "db_token": SettingField("VOX_DB_TOKEN", _SECRET, None, "eyJ...", second="TURSO_AUTH_TOKEN"),
    "db_urls": SettingField("VOX_DB_URLS", _ADDRESS, None, "acme=libsql://acme.example.com"),
    "db_path": SettingField("VOX_DB_PATH", _PATH, Path(".vox/cache/db/local.db"), ".vox/cache/db/local.db"),
    "db_driver": SettingField("VOX_DB_DRIVER", Driver, Driver.AUTO, "auto", is_plain=True),
    "db_replica": SettingField("VOX_DB_REPLICA", ReplicaChoice, ReplicaChoice.AUTO, "auto", is_plain=True),
    "db_max_stale_ms": SettingField(
        "VOX_DB_MAX_STALE_MS", _INTEGER, 5_000, "5000", 0, 3_600_000, is_plain=True
    ),
    "db_circuit_breaker": SettingField("VOX_DB_CIRCUIT_BREAKER", _BOOLEAN, False, "1", is_plain=True),
    "db_allow_plaintext": SettingField("VOX_DB_ALLOW_PLAINTEXT", _BOOLEAN, False, "1"),
    "db_deadline": SettingField("VOX_DB_DEADLINE", _SECONDS, 10.0, "10s", 0.001, 600, is_plain=True),
    "db_request_timeout": SettingField(
        "VOX_DB_REQUEST_TIMEOUT", _SECONDS, 5.0, "5s", 0.001, 600, is_plain=True
    ),
    "archive_dir": SettingField("VOX_ARCHIVE_DIR", _PATH, None, "/mnt/archive"),
    "archive_url": SettingField("VOX_ARCHIVE_URL", _ADDRESS, None, "https://s3.example.com/bucket/mesh"),
    "archive_after": SettingField(
        "VOX_ARCHIVE_AFTER", _SECONDS, 2_592_000.0, "30d", 0, 315_360_000, is_plain=True
    ),
    "archive_interval": SettingField(
        "VOX_ARCHIVE_INTERVAL", _SECONDS, 86_400.0, "1d", 1, 2_592_000, is_plain=True
    ),
    "archive_keep": SettingField("VOX_ARCHIVE_KEEP", _SECONDS, None, "60d", 0, 315_360_000, is_plain=True),
    "archive_key_id": SettingField("VOX_ARCHIVE_KEY_ID", _TEXT, None, "AKIAIOSFODNN7EXAMPLE", most=256),
    "archive_secret": SettingField("VOX_ARCHIVE_SECRET", _SECRET, None, "wJalrXUtnFEMI..."),
    "archive_region": SettingField("VOX_ARCHIVE_REGION", _NAME, "us-east-1", "eu-central-1"),
    "backup_dir": SettingField("VOX_BACKUP_DIR", _PATH, None, "/mnt/backups"),
    "backup_url": SettingField("VOX_BACKUP_URL", _ADDRESS, None, "https://s3.example.com/bucket/backups"),
    "backup_interval": SettingField(
        "VOX_BACKUP_INTERVAL", _SECONDS, 86_400.0, "1d", 60, 31_536_000, is_plain=True
    ),
    "backup_keep": SettingField("VOX_BACKUP_KEEP", _INTEGER, 7, "7", 1, 1_000),
    "backup_key_id": SettingField("VOX_BACKUP_KEY_ID", _TEXT, None, "AKIAIOSFODNN7EXAMPLE", most=256),
    "backup_secret": SettingField("VOX_BACKUP_SECRET", _SECRET, None, "wJalrXUtnFEMI..."),
    "backup_region": SettingField("VOX_BACKUP_REGION", _NAME, "us-east-1", "eu-central-1"),
    "spool_max_bytes": SettingField(
        "VOX_SPOOL_MAX_BYTES", _INTEGER, 64 * 2**20, "67108864", 4_096, is_plain=True
    ),
}
"""All settings by the name of their attribute."""

EXAMPLES: Final = {field.variable: field.example for field in FIELDS.values()}
"""An example of each variable."""

FIELD_OF: Final = {field.variable: name for name, field in FIELDS.items()}
"""The attribute that a variable sets, without second names."""

PLAIN_FIELDS: Final = frozenset(name for name, field in FIELDS.items() if field.is_plain)
"""The settings that a `.env` file may set without the user's approval."""
