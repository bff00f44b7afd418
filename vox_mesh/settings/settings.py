"""Settings: the `VOX_*` variables, from the environment or a `.env` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from vox_mesh.errors import BadSettings
from vox_mesh.model.base import durations
from vox_mesh.model.base.addresses import is_loopback
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.base.shared_tokens import MIN_BITS, strength_bits
from vox_mesh.model.jobs.sandbox import Sandbox
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.settings.names import ENV_FILE, NAME, PLAIN_FIELDS
from vox_mesh.settings.sources import EnvFileSource, SecretSource, VariableSource
from vox_mesh.settings.trust import check_env_file

_REMOTE_SCHEMES: Final = {"libsql": True, "https": True, "wss": True, "http": False, "ws": False}


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes and underscores")
    return value


def _database_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "file":
        if not _path_of(value):
            raise ValueError("a file: URL must have a path")
        return value
    if parts.scheme not in _REMOTE_SCHEMES:
        allowed = ", ".join(f"{scheme}://" for scheme in _REMOTE_SCHEMES)
        raise ValueError(f"the scheme must be {allowed} or file:, got {parts.scheme!r}")
    if not parts.hostname:
        raise ValueError("the URL must have a host")
    if parts.username or parts.password or "authtoken" in parts.query.lower():
        raise ValueError("the URL must not hold the token: set VOX_DB_TOKEN")
    if parts.query not in ("", "tls=0", "tls=1"):
        raise ValueError("the query of the URL must be ?tls=0 or ?tls=1")  # it may hold a secret: not shown
    _check_port(parts)
    return value


def _path_of(file_url: str) -> str:
    """Return the path in a `file:` URL, with or without slashes for the absent host."""
    parts = urlsplit(file_url)
    if parts.netloc not in ("", "localhost"):
        return unquote(parts.netloc + parts.path)
    return unquote(parts.path)


def _control_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("must have nothing but a scheme, a host and a port")
    _check_port(parts)
    return value.rstrip("/")


def _bind_address(value: str) -> str:
    parts = urlsplit(f"//{value}")
    _check_port(parts)
    if not parts.hostname or parts.port is None or parts.path or parts.username:
        raise ValueError("must be HOST:PORT")
    return value


def _token(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if not secret.isascii() or not secret.isprintable() or not secret or " " in secret:
        raise ValueError("must be printable ASCII without spaces")
    if strength_bits(secret) < MIN_BITS:
        raise ValueError(f"must have at least {MIN_BITS} bits: 32 random hex digits or more")
    return value


def _public_key(value: str) -> str:
    if not is_public_key(value):
        raise ValueError("must be ed25519:<64 hexadecimal digits>")
    return value


def _check_port(parts: SplitResult) -> None:
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port must be a number from 0 to 65535") from None


Name = Annotated[str, AfterValidator(_name)]
ControlAddress = Annotated[str, AfterValidator(_control_address)]
BindAddress = Annotated[str, AfterValidator(_bind_address)]
PublicKey = Annotated[str, AfterValidator(_public_key)]
Token = Annotated[SecretStr, AfterValidator(_token)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
Seconds = Annotated[float, BeforeValidator(lambda text: durations.milliseconds(text) / 1_000)]
"""A duration as people write it, in seconds."""


class Settings(BaseSettings):
    """The settings of a process. Secrets are `SecretStr`: they never show in `repr`, logs or JSON."""

    model_config = SettingsConfigDict(
        env_file=ENV_FILE,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    enabled: bool = Field(False, validation_alias="VOX_MESH_ENABLED")
    node_id: Name | None = Field(None, validation_alias="VOX_MESH_NODE_ID")
    control_addr: ControlAddress | None = Field(None, validation_alias="VOX_MESH_CONTROL_ADDR")
    bind: BindAddress | None = Field(None, validation_alias="VOX_MESH_BIND")
    http: bool = Field(True, validation_alias="VOX_MESH_HTTP")
    message_retention: Seconds = Field(
        86_400.0, validate_default=False, validation_alias="VOX_MESH_MESSAGE_RETENTION", ge=1, le=31_536_000
    )
    worker_exec: bool = Field(False, validation_alias="VOX_WORKER_EXEC")
    worker_exec_allow: str | None = Field(None, validation_alias="VOX_WORKER_EXEC_ALLOW")
    worker_exec_user: str | None = Field(None, validation_alias="VOX_WORKER_EXEC_USER", max_length=64)
    worker_exec_sandbox: Sandbox = Field(Sandbox.AUTO, validation_alias="VOX_WORKER_EXEC_SANDBOX")
    worker_exec_limits: str | None = Field(None, validation_alias="VOX_WORKER_EXEC_LIMITS")
    worker_exec_secrets: str | None = Field(None, validation_alias="VOX_WORKER_EXEC_SECRETS")
    worker_concurrency: int = Field(8, validation_alias="VOX_WORKER_CONCURRENCY", ge=1, le=1_000)
    tempo_policy: Path | None = Field(None, validation_alias="VOX_MESH_TEMPO_POLICY")
    rates: Path | None = Field(None, validation_alias="VOX_MESH_RATES")
    scope_id: str = Field("", validation_alias="VOX_MESH_SCOPE_ID", max_length=64)
    repository_id: Name = Field("default", validation_alias="VOX_MESH_REPOSITORY_ID")
    token: Token | None = Field(None, validation_alias="VOX_MESH_TOKEN")
    read_token: Token | None = Field(None, validation_alias="VOX_MESH_READ_TOKEN")
    metrics_token: Token | None = Field(None, validation_alias="VOX_MESH_METRICS_TOKEN")
    rate_limit: int = Field(500, validation_alias="VOX_MESH_RATE_LIMIT", ge=1, le=1_000_000)
    open_limit: int = Field(100_000, validation_alias="VOX_MESH_OPEN_LIMIT", ge=1, le=1_000_000_000)
    owner_key: PublicKey | None = Field(None, validation_alias="VOX_MESH_OWNER_KEY")
    tick: Seconds = Field(5.0, validate_default=False, validation_alias="VOX_MESH_TICK", ge=0.05, le=3_600)
    command_server: bool = Field(True, validation_alias="VOX_MESH_COMMAND_SERVER")
    home_dir: Path = Field(Path(".vox"), validation_alias="VOX_MESH_HOME")
    agent_id: str | None = Field(None, validation_alias="VOX_AGENT_ID", max_length=128)
    log_format: Literal["text", "json"] = Field("text", validation_alias="VOX_LOG_FORMAT")
    db_url: DatabaseUrl | None = Field(
        None, validation_alias=AliasChoices("VOX_DB_URL", "TURSO_DATABASE_URL")
    )
    db_token: SecretStr | None = Field(
        None, validation_alias=AliasChoices("VOX_DB_TOKEN", "TURSO_AUTH_TOKEN")
    )
    db_path: Path = Field(Path(".vox/cache/db/local.db"), validation_alias="VOX_DB_PATH")
    db_driver: Driver = Field(Driver.AUTO, validation_alias="VOX_DB_DRIVER")
    db_replica: ReplicaChoice = Field(ReplicaChoice.AUTO, validation_alias="VOX_DB_REPLICA")
    db_max_stale_ms: int = Field(5_000, validation_alias="VOX_DB_MAX_STALE_MS", ge=0, le=3_600_000)
    db_circuit_breaker: bool = Field(False, validation_alias="VOX_DB_CIRCUIT_BREAKER")
    db_allow_plaintext: bool = Field(False, validation_alias="VOX_DB_ALLOW_PLAINTEXT")
    db_deadline: Seconds = Field(
        10.0, validate_default=False, validation_alias="VOX_DB_DEADLINE", gt=0, le=600
    )
    db_request_timeout: Seconds = Field(
        5.0, validate_default=False, validation_alias="VOX_DB_REQUEST_TIMEOUT", gt=0, le=600
    )
    spool_max_bytes: int = Field(64 * 2**20, validation_alias="VOX_SPOOL_MAX_BYTES", ge=4_096)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the first of which wins."""
        assert isinstance(dotenv_settings, DotEnvSettingsSource)
        env_file = EnvFileSource(settings_cls, dotenv_settings.env_file, PLAIN_FIELDS)
        return init_settings, VariableSource(settings_cls), SecretSource(settings_cls), env_file

    @property
    def backend(self) -> Backend:
        """Return the backend that these settings choose."""
        if not self.enabled:
            return Backend.MEMORY
        if self.db_url is None or self.db_url.startswith("file:"):
            return Backend.FILE
        return Backend.SERVER

    @property
    def home(self) -> Backend:
        """Return `backend`. Deprecated."""
        warn_renamed("settings.home", "settings.backend")
        return self.backend

    @property
    def file_path(self) -> Path:
        """Return the database file of the file backend."""
        if self.db_url is not None and self.db_url.startswith("file:"):
            return Path(_path_of(self.db_url))
        return self.db_path

    @property
    def endpoint(self) -> str:
        """Return the server's address as `http(s)://host[:port]`; only of the server backend."""
        if self.backend is not Backend.SERVER or self.db_url is None:
            raise BadSettings("VOX_DB_URL is not set", hint="set VOX_DB_URL=libsql://my-db.turso.io")
        parts = urlsplit(self.db_url)
        encrypted = _REMOTE_SCHEMES[parts.scheme] and parts.query != "tls=0"
        return f"{'https' if encrypted else 'http'}://{parts.netloc}{parts.path.rstrip('/')}"

    @property
    def is_database_elsewhere(self) -> bool:
        """Return whether the database is on another machine, with its own clock."""
        return self.backend is Backend.SERVER and not is_loopback(urlsplit(self.endpoint).hostname or "")


EXAMPLES: Final = {
    "VOX_MESH_ENABLED": "1",
    "VOX_MESH_NODE_ID": "builder-1",
    "VOX_MESH_CONTROL_ADDR": "http://10.0.0.7:7400",
    "VOX_MESH_BIND": "0.0.0.0:7400",
    "VOX_MESH_HTTP": "0",
    "VOX_MESH_MESSAGE_RETENTION": "1d",
    "VOX_WORKER_EXEC": "1",
    "VOX_WORKER_EXEC_ALLOW": "git fetch origin,/opt/tools/convert",
    "VOX_WORKER_EXEC_USER": "vox-jobs",
    "VOX_WORKER_EXEC_SANDBOX": "bwrap",
    "VOX_WORKER_EXEC_LIMITS": "nofile=1024,as=4G",
    "VOX_WORKER_EXEC_SECRETS": "API_KEY,NPM_TOKEN=/run/secrets/npm",
    "VOX_WORKER_CONCURRENCY": "8",
    "VOX_MESH_TEMPO_POLICY": "tempo.yaml",
    "VOX_MESH_RATES": "rates.yaml",
    "VOX_MESH_SCOPE_ID": "acme",
    "VOX_MESH_REPOSITORY_ID": "website",
    "VOX_MESH_TOKEN": "the-output-of-vox-mesh-token-random",
    "VOX_MESH_READ_TOKEN": "another-output-of-vox-mesh-token-random",
    "VOX_MESH_METRICS_TOKEN": "a-third-output-of-vox-mesh-token-random",
    "VOX_MESH_RATE_LIMIT": "500",
    "VOX_MESH_OPEN_LIMIT": "100000",
    "VOX_MESH_OWNER_KEY": "ed25519:1c5e5c1ee10a63588e5942b2dfd248a6d2178d18e1ae635fc3d650605ebb41b7",
    "VOX_MESH_TICK": "5s",
    "VOX_MESH_COMMAND_SERVER": "1",
    "VOX_MESH_HOME": ".vox",
    "VOX_AGENT_ID": "planner",
    "VOX_LOG_FORMAT": "json",
    "VOX_DB_URL": "libsql://my-db.turso.io",
    "VOX_DB_TOKEN": "eyJ...",
    "VOX_DB_PATH": ".vox/cache/db/local.db",
    "VOX_DB_DRIVER": "auto",
    "VOX_DB_REPLICA": "auto",
    "VOX_DB_MAX_STALE_MS": "5000",
    "VOX_DB_CIRCUIT_BREAKER": "1",
    "VOX_DB_ALLOW_PLAINTEXT": "1",
    "VOX_DB_DEADLINE": "10s",
    "VOX_DB_REQUEST_TIMEOUT": "5s",
    "VOX_SPOOL_MAX_BYTES": "67108864",
}

_TOKENS: Final = frozenset({"VOX_MESH_TOKEN", "VOX_MESH_READ_TOKEN", "VOX_MESH_METRICS_TOKEN"})


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, or raise `BadSettings` with one line that names the variable."""
    env_file = overrides.get("_env_file", ENV_FILE)
    try:
        if env_file is not None:
            check_env_file(Path(env_file))  # first, because pydantic opens it before our source checks it
        settings = Settings(**overrides)
    except ValidationError as error:
        raise _explained(error) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{ENV_FILE} can't be read: {error}", hint="write it as UTF-8 text") from None
    _refuse_plaintext_token(settings)
    return settings


def variable_of(field: str) -> str:
    """Return the first variable that sets a field."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else str(alias)


def _explained(error: ValidationError) -> BadSettings:
    first = error.errors(include_url=False, include_input=False)[0]
    variable = str(first["loc"][0])
    if variable in Settings.model_fields:
        shown = variable = variable_of(variable)
    else:
        shown = _name_in_use(variable)
    fault = first["msg"].removeprefix("Value error, ")
    fault = fault[:1].lower() + fault[1:]
    if variable in _TOKENS:
        return BadSettings(f"{shown}: {fault}", hint="make one with `vox-mesh token random`")
    return BadSettings(f"{shown}: {fault}", hint=f"for example {shown}={EXAMPLES[variable]}")


def _name_in_use(variable: str) -> str:
    """Return the variable, or its second name if only that is set."""
    second = {"VOX_DB_URL": "TURSO_DATABASE_URL", "VOX_DB_TOKEN": "TURSO_AUTH_TOKEN"}.get(variable)
    return second if second and second in os.environ and variable not in os.environ else variable


def _refuse_plaintext_token(settings: Settings) -> None:
    if settings.backend is not Backend.SERVER or settings.db_token is None or settings.db_allow_plaintext:
        return
    endpoint = urlsplit(settings.endpoint)
    if endpoint.scheme == "http" and not is_loopback(endpoint.hostname or ""):
        raise BadSettings(
            f"VOX_DB_URL: the token would be sent unencrypted to {endpoint.hostname}",
            hint="for example VOX_DB_URL=libsql://my-db.turso.io, or set VOX_DB_ALLOW_PLAINTEXT=1",
        )
