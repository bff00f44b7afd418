"""Settings: the `VOX_*` variables, from the environment or a `.env` file."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

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
from vox_mesh.model.base.keys import PUBLIC_KEY_FORM, is_public_key
from vox_mesh.model.base.reserved import MESH_AGENT, PERSON
from vox_mesh.model.base.shared_tokens import MIN_BITS, strength_bits
from vox_mesh.model.jobs.sandbox import Sandbox
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.settings.discovery import DATABASE
from vox_mesh.settings.fields import ENV_FILE, EXAMPLES, FIELDS, NAME, PLAIN_FIELDS, UNIX, Kind
from vox_mesh.settings.paths import file_url_path
from vox_mesh.settings.scope_directory import DIRECTORY, ScopeDirectory, read_directory
from vox_mesh.settings.secrets import read_secret
from vox_mesh.settings.sources import (
    EnvFileSource,
    MeshEnvFileSource,
    MeshSource,
    SecretSource,
    VariableSource,
)
from vox_mesh.settings.trust import check_env_file

_REMOTE_SCHEMES: Final = {"libsql": True, "https": True, "wss": True, "http": False, "ws": False}


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes and underscores")
    return value


def _agent_name(value: str) -> str:
    if value == MESH_AGENT:
        raise ValueError("must not be mesh: only the mesh itself acts in this name")
    if value.startswith(PERSON):
        raise ValueError(f"must not begin with {PERSON}: people act in these names")
    return value


def _database_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "file":
        if not file_url_path(value):
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


def _database_urls(value: str) -> str:
    read_directory(value, _database_url)
    return value


def _control_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("must have nothing but a scheme, a host and a port")
    _check_port(parts)
    return value.rstrip("/")


def _archive_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
        raise ValueError("must be https://HOST/BUCKET, with a prefix or without")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("the URL must not hold a key: set the variables for the key and its secret")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError(f"the data would be sent unencrypted to {parts.hostname}: use https://")
    _check_port(parts)
    return value


def _node_address(value: str) -> str:
    if value.startswith(UNIX):
        if not value.removeprefix(UNIX).startswith("/"):
            raise ValueError("the path after unix: must be absolute")
        return value
    if "://" not in value:
        raise ValueError("must be unix:PATH, http://HOST:PORT or https://HOST")
    url, mark, named = value.partition("#")
    return _control_address(url) + mark + named


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
        raise ValueError(f"must be {PUBLIC_KEY_FORM}")
    return value


def _check_port(parts: SplitResult) -> None:
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port must be a number from 0 to 65535") from None


Name = Annotated[str, AfterValidator(_name)]
NodeName = Annotated[Name, AfterValidator(_agent_name)]
AgentName = Annotated[str, AfterValidator(_agent_name)]
ControlAddress = Annotated[str, AfterValidator(_control_address)]
NodeAddress = Annotated[str, AfterValidator(_node_address)]
BindAddress = Annotated[str, AfterValidator(_bind_address)]
PublicKey = Annotated[str, AfterValidator(_public_key)]
Token = Annotated[SecretStr, AfterValidator(_token)]
ArchiveUrl = Annotated[str, AfterValidator(_archive_url)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
DatabaseUrls = Annotated[str, AfterValidator(_database_urls)]
Seconds = Annotated[float, BeforeValidator(lambda text: durations.milliseconds(text) / 1_000)]
"""A duration as people write it, in seconds."""


def sources_of(settings_cls: type[BaseSettings], env_file: Any) -> tuple[PydanticBaseSettingsSource, ...]:
    """Return the sources of settings besides arguments, the first of which wins."""
    found: list[PydanticBaseSettingsSource] = [
        VariableSource(settings_cls),
        SecretSource(settings_cls),
        EnvFileSource(settings_cls, env_file, PLAIN_FIELDS),
    ]
    if env_file == ENV_FILE:  # neither none nor another one was asked for
        found.append(MeshEnvFileSource(settings_cls, PLAIN_FIELDS))
    return (*found, MeshSource(settings_cls))


def _field(name: str) -> Any:
    """Return the field of a setting as the table describes it."""
    found = FIELDS[name]
    alias = AliasChoices(*found.variables) if found.second is not None else found.variable
    bounds: dict[str, Any] = {"ge": found.least, "le": found.most}
    if found.kind is Kind.TEXT:
        bounds = {"max_length": found.most}
    given = {key: bound for key, bound in bounds.items() if bound is not None}
    return Field(found.default, validate_default=False, validation_alias=alias, **given)


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

    enabled: bool = _field("enabled")
    node_id: NodeName | None = _field("node_id")
    control_addr: ControlAddress | None = _field("control_addr")
    bind: BindAddress | None = _field("bind")
    http: bool = _field("http")
    ui: bool = _field("ui")
    message_retention: Seconds = _field("message_retention")
    prune_interval: Seconds = _field("prune_interval")
    worker_exec: bool = _field("worker_exec")
    worker_exec_allow: str | None = _field("worker_exec_allow")
    worker_exec_user: str | None = _field("worker_exec_user")
    worker_exec_sandbox: Sandbox = _field("worker_exec_sandbox")
    worker_exec_limits: str | None = _field("worker_exec_limits")
    worker_exec_secrets: str | None = _field("worker_exec_secrets")
    worker_agents: Path | None = _field("worker_agents")
    worker_policy_roots: str | None = _field("worker_policy_roots")
    worker_concurrency: int = _field("worker_concurrency")
    tempo_policy: Path | None = _field("tempo_policy")
    rates: Path | None = _field("rates")
    scope_id: str = _field("scope_id")
    repository_id: Name = _field("repository_id")
    token: Token | None = _field("token")
    read_token: Token | None = _field("read_token")
    metrics_token: Token | None = _field("metrics_token")
    agent_socket: Path | None = _field("agent_socket")
    agent_socket_group: str | None = _field("agent_socket_group")
    agent_uids: str | None = _field("agent_uids")
    rate_limit: int = _field("rate_limit")
    open_limit: int = _field("open_limit")
    strict: bool = _field("strict")
    owner_key: PublicKey | None = _field("owner_key")
    tick: Seconds = _field("tick")
    command_server: bool = _field("command_server")
    home_dir: Path = _field("home_dir")
    agent_id: AgentName | None = _field("agent_id")
    agent_key: Path | None = _field("agent_key")
    agent_token: SecretStr | None = _field("agent_token")
    node: NodeAddress | None = _field("node")
    log_format: Literal["text", "json"] = _field("log_format")
    db_url: DatabaseUrl | None = _field("db_url")
    db_token: SecretStr | None = _field("db_token")
    db_urls: DatabaseUrls | None = _field("db_urls")
    db_path: Path = _field("db_path")
    db_driver: Driver = _field("db_driver")
    db_replica: ReplicaChoice = _field("db_replica")
    db_max_stale_ms: int = _field("db_max_stale_ms")
    db_circuit_breaker: bool = _field("db_circuit_breaker")
    db_allow_plaintext: bool = _field("db_allow_plaintext")
    db_deadline: Seconds = _field("db_deadline")
    db_request_timeout: Seconds = _field("db_request_timeout")
    archive_dir: Path | None = _field("archive_dir")
    archive_url: ArchiveUrl | None = _field("archive_url")
    archive_after: Seconds = _field("archive_after")
    archive_interval: Seconds = _field("archive_interval")
    archive_keep: Seconds | None = _field("archive_keep")
    archive_key_id: str | None = _field("archive_key_id")
    archive_secret: SecretStr | None = _field("archive_secret")
    archive_region: Name = _field("archive_region")
    backup_dir: Path | None = _field("backup_dir")
    backup_url: ArchiveUrl | None = _field("backup_url")
    backup_interval: Seconds = _field("backup_interval")
    backup_keep: int = _field("backup_keep")
    backup_key_id: str | None = _field("backup_key_id")
    backup_secret: SecretStr | None = _field("backup_secret")
    backup_region: Name = _field("backup_region")
    spool_max_bytes: int = _field("spool_max_bytes")

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
        return (init_settings, *sources_of(settings_cls, dotenv_settings.env_file))

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
            return Path(file_url_path(self.db_url))
        return self.db_path

    @property
    def endpoint(self) -> str:
        """Return the server's address as `http(s)://host[:port]`; only of the server backend."""
        if self.backend is not Backend.SERVER or self.db_url is None:
            raise BadSettings("VOX_DB_URL is not set", hint="set VOX_DB_URL=libsql://my-db.turso.io")
        parts = urlsplit(self.db_url)
        encrypted = _REMOTE_SCHEMES[parts.scheme] and parts.query != "tls=0"
        return f"{'https' if encrypted else 'http'}://{parts.netloc}{parts.path.rstrip('/')}"

    @cached_property
    def directory(self) -> ScopeDirectory | None:
        """Return the directory of scopes, or `None` without one."""
        try:
            return None if self.db_urls is None else read_directory(self.db_urls, _database_url)
        except ValueError as error:  # the file was valid a moment ago
            raise BadSettings(f"{DIRECTORY}: {error}", hint="correct the file") from None

    def in_scope(self, scope: str) -> Settings:
        """Return the settings of one scope of the directory: its database, and a home and backups of its own.

        Raises `NotKnown` if the directory has no such scope, and `BadSettings` if it can't be used.
        """
        if self.directory is None:
            raise BadSettings(
                f"{DIRECTORY} is not set", hint=f"for example {DIRECTORY}={EXAMPLES[DIRECTORY]}"
            )
        entry = self.directory.entry(scope)
        token = None if entry.token_file is None else SecretStr(read_secret(entry.token_file, DIRECTORY))
        home = self.home_dir / SCOPES / scope
        found = self.model_copy(
            update={
                "enabled": True,
                "scope_id": scope,
                "db_url": entry.url,
                "db_token": token,
                "home_dir": home,
                "db_path": home / DATABASE,
                "backup_dir": None if self.backup_dir is None else self.backup_dir / scope,
                "backup_url": None if self.backup_url is None else f"{self.backup_url.rstrip('/')}/{scope}",
            }
        )
        _refuse_plaintext_token(found, DIRECTORY)
        return found

    @property
    def is_database_elsewhere(self) -> bool:
        """Return whether the database is on another machine, with its own clock."""
        return self.backend is Backend.SERVER and not is_loopback(urlsplit(self.endpoint).hostname or "")


_TOKENS: Final = frozenset({"VOX_MESH_TOKEN", "VOX_MESH_READ_TOKEN", "VOX_MESH_METRICS_TOKEN"})


SCOPES: Final = "scopes"
"""The folder in a home with a home for each scope of the directory."""


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, or raise `BadSettings` with one line that names the variable.

    With a directory of scopes, they are those of the scope in VOX_MESH_SCOPE_ID.
    """
    settings = load_process_settings(**overrides)
    if settings.db_urls is None:
        return settings
    if not settings.scope_id:
        raise BadSettings(
            f"no scope given, and {DIRECTORY} has several databases",
            hint="set VOX_MESH_SCOPE_ID to one of them: `vox-mesh scopes` lists them",
        )
    return settings.in_scope(settings.scope_id)


def load_process_settings(**overrides: Any) -> Settings:
    """Read the settings as `load_settings` does, but of no scope, for a process that opens several."""
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


def _refuse_plaintext_token(settings: Settings, variable: str = "VOX_DB_URL") -> None:
    if settings.backend is not Backend.SERVER or settings.db_token is None or settings.db_allow_plaintext:
        return
    endpoint = urlsplit(settings.endpoint)
    if endpoint.scheme == "http" and not is_loopback(endpoint.hostname or ""):
        raise BadSettings(
            f"{variable}: the token would be sent unencrypted to {endpoint.hostname}",
            hint=f"for example {variable}={EXAMPLES[variable]}, or set VOX_DB_ALLOW_PLAINTEXT=1",
        )
