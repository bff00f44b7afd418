"""Settings of a short command, read without pydantic, which takes longer to load than most commands to run.

Only ordinary settings are read here. For everything else, such as a secret, a server, an unusual spelling or
an invalid value, there is no result, and `load_settings` decides. A test compares both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.jobs.sandbox import Sandbox
from vox_mesh.settings.names import ENV_FILE, NAME, PLAIN_FIELDS
from vox_mesh.settings.secrets import CREDENTIALS, FILE_SUFFIX, SECRET_VARIABLES, secret_of

if TYPE_CHECKING:
    from vox_mesh.settings.settings import Settings

Read = Callable[[str], Any]

_BOOLEANS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}")


class _Unusual(Exception):
    """A value or a source that only `load_settings` may judge."""


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise _Unusual
    return _BOOLEANS[text]


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise _Unusual
    return text


def _public_key(text: str) -> str:
    if not is_public_key(text):
        raise _Unusual
    return text


def _text(text: str) -> str:
    return text


def _text_up_to(limit: int) -> Read:
    def read(text: str) -> str:
        if len(text) > limit:
            raise _Unusual
        return text

    return read


def _integer(least: int, most: int = 2**53) -> Read:
    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise _Unusual
        return int(text)

    return read


def _seconds(least: float, most: float) -> Read:
    def read(text: str) -> float:
        try:
            seconds = milliseconds(text) / 1_000
        except ValueError:
            raise _Unusual from None
        if not least <= seconds <= most:
            raise _Unusual
        return seconds

    return read


def _one_of(choices: type[StrEnum]) -> Read:
    def read(text: str) -> StrEnum:
        try:
            return choices(text)
        except ValueError:
            raise _Unusual from None

    return read


def _format(text: str) -> str:
    if text not in ("text", "json"):
        raise _Unusual
    return text


def _unusual(text: str) -> Any:
    raise _Unusual


class QuickField(NamedTuple):
    """A setting: its first variable, its default, and how its text is read."""

    variable: str
    default: Any
    read: Read


FIELDS: Final = {
    "enabled": QuickField("VOX_MESH_ENABLED", False, _boolean),
    "node_id": QuickField("VOX_MESH_NODE_ID", None, _name),
    "control_addr": QuickField("VOX_MESH_CONTROL_ADDR", None, _unusual),
    "bind": QuickField("VOX_MESH_BIND", None, _unusual),
    "http": QuickField("VOX_MESH_HTTP", True, _boolean),
    "message_retention": QuickField("VOX_MESH_MESSAGE_RETENTION", 86_400.0, _seconds(1, 31_536_000)),
    "worker_exec": QuickField("VOX_WORKER_EXEC", False, _boolean),
    "worker_exec_allow": QuickField("VOX_WORKER_EXEC_ALLOW", None, _text),
    "worker_exec_user": QuickField("VOX_WORKER_EXEC_USER", None, _text_up_to(64)),
    "worker_exec_sandbox": QuickField("VOX_WORKER_EXEC_SANDBOX", Sandbox.AUTO, _one_of(Sandbox)),
    "worker_exec_limits": QuickField("VOX_WORKER_EXEC_LIMITS", None, _text),
    "worker_exec_secrets": QuickField("VOX_WORKER_EXEC_SECRETS", None, _text),
    "worker_concurrency": QuickField("VOX_WORKER_CONCURRENCY", 8, _integer(1, 1_000)),
    "tempo_policy": QuickField("VOX_MESH_TEMPO_POLICY", None, Path),
    "rates": QuickField("VOX_MESH_RATES", None, Path),
    "scope_id": QuickField("VOX_MESH_SCOPE_ID", "", _text_up_to(64)),
    "repository_id": QuickField("VOX_MESH_REPOSITORY_ID", "default", _name),
    "token": QuickField("VOX_MESH_TOKEN", None, _unusual),
    "read_token": QuickField("VOX_MESH_READ_TOKEN", None, _unusual),
    "metrics_token": QuickField("VOX_MESH_METRICS_TOKEN", None, _unusual),
    "rate_limit": QuickField("VOX_MESH_RATE_LIMIT", 500, _integer(1, 1_000_000)),
    "open_limit": QuickField("VOX_MESH_OPEN_LIMIT", 100_000, _integer(1, 1_000_000_000)),
    "owner_key": QuickField("VOX_MESH_OWNER_KEY", None, _public_key),
    "tick": QuickField("VOX_MESH_TICK", 5.0, _seconds(0.05, 3_600)),
    "command_server": QuickField("VOX_MESH_COMMAND_SERVER", True, _boolean),
    "home_dir": QuickField("VOX_MESH_HOME", Path(".vox"), Path),
    "agent_id": QuickField("VOX_AGENT_ID", None, _text_up_to(128)),
    "log_format": QuickField("VOX_LOG_FORMAT", "text", _format),
    "db_url": QuickField("VOX_DB_URL", None, _unusual),
    "db_token": QuickField("VOX_DB_TOKEN", None, _unusual),
    "db_path": QuickField("VOX_DB_PATH", Path(".vox/cache/db/local.db"), Path),
    "db_driver": QuickField("VOX_DB_DRIVER", Driver.AUTO, _one_of(Driver)),
    "db_replica": QuickField("VOX_DB_REPLICA", ReplicaChoice.AUTO, _one_of(ReplicaChoice)),
    "db_max_stale_ms": QuickField("VOX_DB_MAX_STALE_MS", 5_000, _integer(0, 3_600_000)),
    "db_circuit_breaker": QuickField("VOX_DB_CIRCUIT_BREAKER", False, _boolean),
    "db_allow_plaintext": QuickField("VOX_DB_ALLOW_PLAINTEXT", False, _boolean),
    "db_deadline": QuickField("VOX_DB_DEADLINE", 10.0, _seconds(0.001, 600)),
    "db_request_timeout": QuickField("VOX_DB_REQUEST_TIMEOUT", 5.0, _seconds(0.001, 600)),
    "spool_max_bytes": QuickField("VOX_SPOOL_MAX_BYTES", 64 * 2**20, _integer(4_096)),
}
"""All settings, in the order of `Settings`."""

_FIELD_OF: Final = {field.variable: name for name, field in FIELDS.items()}
_TURSO: Final = ("TURSO_DATABASE_URL", "TURSO_AUTH_TOKEN")
_KNOWN: Final = frozenset(
    each.lower()
    for each in (
        *_FIELD_OF,
        *_TURSO,
        *FIELDS,
        CREDENTIALS,
        *(name + FILE_SUFFIX for name in SECRET_VARIABLES),
    )
)
"""All names that could mean a setting, in lower case: pydantic ignores the case."""


class QuickSettings:
    """The settings of a command on the memory or file backend, with the attributes that `Settings` has."""

    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)

    if TYPE_CHECKING:
        enabled: bool
        db_path: Path

    @property
    def backend(self) -> Backend:
        """Return the backend that these settings choose."""
        return Backend.FILE if self.enabled else Backend.MEMORY

    @property
    def file_path(self) -> Path:
        """Return the database file of the file backend."""
        return self.db_path

    @property
    def endpoint(self) -> str:
        """Raise `BadSettings`: there is no server."""
        raise BadSettings("VOX_DB_URL is not set", hint="set VOX_DB_URL=libsql://my-db.turso.io")

    @property
    def is_database_elsewhere(self) -> bool:
        """Return whether the database is on another machine."""
        return False


def quick_settings() -> Settings | None:
    """Return the settings if they are ordinary, or `None` if `load_settings` must read them."""
    try:
        given = {_FIELD_OF[name]: text for name, text in _given()}
        values = {
            name: field.read(given[name]) if name in given else field.default
            for name, field in FIELDS.items()
        }
    except _Unusual:
        return None
    return cast("Settings", QuickSettings(values))


def _given() -> Iterator[tuple[str, str]]:
    """Yield the variables that set something; those of the environment last, since they win."""
    if any(secret_of(name) is not None for name in SECRET_VARIABLES):
        raise _Unusual
    variables = {name: text for name, text in os.environ.items() if name.lower() in _KNOWN}
    for name, text in (*_in_env_file(variables), *variables.items()):
        if name not in _FIELD_OF or not (text.isascii() and text.isprintable()):
            raise _Unusual
        if text:
            yield name, text


def _in_env_file(exported: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of the `.env` file that are not exported; approval is needed for most."""
    if not os.path.lexists(ENV_FILE):
        return
    from vox_mesh.settings.trust import read_env_file  # imported late: loads a parser

    try:
        file = read_env_file(Path(ENV_FILE))
    except (BadSettings, OSError, UnicodeDecodeError):
        raise _Unusual from None
    for name, text in ({} if file is None else file.variables).items():
        if name.lower() not in _KNOWN or exported.get(name):
            continue
        is_allowed = file is not None and (file.is_trusted or _FIELD_OF.get(name) in PLAIN_FIELDS)
        if not text or not is_allowed or name in exported:
            raise _Unusual
        yield name, text
