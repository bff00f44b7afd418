"""Settings: every variable is read, every bad value is reported in one line, and no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from vox_mesh import Settings, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.addresses import is_loopback
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.model.jobs.sandbox import Sandbox
from vox_mesh.settings import EXAMPLES, load_process_settings, variable_of
from vox_mesh.settings.trust import read_env_file, trust

SECRET = "s3cr3t-t0k3n"
STRONG = SECRET * 6


READ: dict[str, tuple[str, str, Any]] = {
    "VOX_MESH_ENABLED": ("enabled", "1", True),
    "VOX_MESH_NODE_ID": ("node_id", "builder-1", "builder-1"),
    "VOX_MESH_CONTROL_ADDR": ("control_addr", "http://10.0.0.7:7400", "http://10.0.0.7:7400"),
    "VOX_MESH_BIND": ("bind", "127.0.0.1:7400", "127.0.0.1:7400"),
    "VOX_MESH_HTTP": ("http", "0", False),
    "VOX_MESH_UI": ("ui", "0", False),
    "VOX_MESH_MESSAGE_RETENTION": ("message_retention", "2h", 7_200.0),
    "VOX_PRUNE_INTERVAL": ("prune_interval", "1m", 60.0),
    "VOX_WORKER_EXEC": ("worker_exec", "1", True),
    "VOX_WORKER_EXEC_ALLOW": ("worker_exec_allow", "python3,/opt/x", "python3,/opt/x"),
    "VOX_WORKER_EXEC_USER": ("worker_exec_user", "vox-jobs", "vox-jobs"),
    "VOX_WORKER_EXEC_SANDBOX": ("worker_exec_sandbox", "bwrap", Sandbox.BWRAP),
    "VOX_WORKER_EXEC_LIMITS": ("worker_exec_limits", "as=4G", "as=4G"),
    "VOX_WORKER_EXEC_SECRETS": ("worker_exec_secrets", "API_KEY", "API_KEY"),
    "VOX_WORKER_POLICY_ROOTS": ("worker_policy_roots", f"sha256:{'ab' * 32}", f"sha256:{'ab' * 32}"),
    "VOX_WORKER_AGENTS": ("worker_agents", "/etc/vox/agents.yaml", Path("/etc/vox/agents.yaml")),
    "VOX_WORKER_CONCURRENCY": ("worker_concurrency", "3", 3),
    "VOX_MESH_TEMPO_POLICY": ("tempo_policy", "/etc/vox/tempo.yaml", Path("/etc/vox/tempo.yaml")),
    "VOX_MESH_RATES": ("rates", "/etc/vox/rates.yaml", Path("/etc/vox/rates.yaml")),
    "VOX_MESH_SCOPE_ID": ("scope_id", "acme", "acme"),
    "VOX_MESH_REPOSITORY_ID": ("repository_id", "website", "website"),
    "VOX_MESH_TOKEN": ("token", STRONG, SecretStr(STRONG)),
    "VOX_MESH_READ_TOKEN": ("read_token", STRONG, SecretStr(STRONG)),
    "VOX_MESH_METRICS_TOKEN": ("metrics_token", STRONG, SecretStr(STRONG)),
    "VOX_MESH_AGENT_SOCKET": ("agent_socket", "/run/agents.sock", Path("/run/agents.sock")),
    "VOX_MESH_AGENT_SOCKET_GROUP": ("agent_socket_group", "vox-agents", "vox-agents"),
    "VOX_MESH_AGENT_UIDS": ("agent_uids", "1001=coder", "1001=coder"),
    "VOX_MESH_RATE_LIMIT": ("rate_limit", "7", 7),
    "VOX_MESH_OPEN_LIMIT": ("open_limit", "9", 9),
    "VOX_MESH_STRICT": ("strict", "1", True),
    "VOX_MESH_OWNER_KEY": ("owner_key", f"ed25519:{'ab' * 32}", f"ed25519:{'ab' * 32}"),
    "VOX_MESH_TICK": ("tick", "500ms", 0.5),
    "VOX_MESH_COMMAND_SERVER": ("command_server", "0", False),
    "VOX_MESH_HOME": ("home_dir", "/var/vox", Path("/var/vox")),
    "VOX_AGENT_ID": ("agent_id", "planner", "planner"),
    "VOX_AGENT_KEY": ("agent_key", "/home/ada/key.pem", Path("/home/ada/key.pem")),
    "VOX_AGENT_TOKEN": ("agent_token", SECRET, SecretStr(SECRET)),
    "VOX_MESH_NODE": ("node", "unix:/run/agents.sock", "unix:/run/agents.sock"),
    "VOX_LOG_FORMAT": ("log_format", "json", "json"),
    "VOX_DB_URL": ("db_url", "libsql://x.turso.io", "libsql://x.turso.io"),
    "VOX_DB_TOKEN": ("db_token", SECRET, SecretStr(SECRET)),
    "VOX_DB_URLS": ("db_urls", "west=libsql://west.turso.io", "west=libsql://west.turso.io"),
    "VOX_DB_PATH": ("db_path", "/var/vox.db", Path("/var/vox.db")),
    "VOX_DB_DRIVER": ("db_driver", "libsql-client", Driver.LIBSQL_CLIENT),
    "VOX_DB_REPLICA": ("db_replica", "off", ReplicaChoice.OFF),
    "VOX_DB_MAX_STALE_MS": ("db_max_stale_ms", "250", 250),
    "VOX_DB_CIRCUIT_BREAKER": ("db_circuit_breaker", "true", True),
    "VOX_DB_ALLOW_PLAINTEXT": ("db_allow_plaintext", "yes", True),
    "VOX_DB_DEADLINE": ("db_deadline", "1500ms", 1.5),
    "VOX_DB_REQUEST_TIMEOUT": ("db_request_timeout", "PT2S", 2.0),
    "VOX_ARCHIVE_DIR": ("archive_dir", "/mnt/archive", Path("/mnt/archive")),
    "VOX_ARCHIVE_URL": ("archive_url", "https://s3.example.com/b", "https://s3.example.com/b"),
    "VOX_ARCHIVE_AFTER": ("archive_after", "7d", 604_800.0),
    "VOX_ARCHIVE_INTERVAL": ("archive_interval", "12h", 43_200.0),
    "VOX_ARCHIVE_KEEP": ("archive_keep", "60d", 5_184_000.0),
    "VOX_ARCHIVE_KEY_ID": ("archive_key_id", "AKIA", "AKIA"),
    "VOX_ARCHIVE_SECRET": ("archive_secret", SECRET, SecretStr(SECRET)),
    "VOX_ARCHIVE_REGION": ("archive_region", "eu-central-1", "eu-central-1"),
    "VOX_BACKUP_DIR": ("backup_dir", "/mnt/backups", Path("/mnt/backups")),
    "VOX_BACKUP_URL": ("backup_url", "https://s3.example.com/b", "https://s3.example.com/b"),
    "VOX_BACKUP_INTERVAL": ("backup_interval", "6h", 21_600.0),
    "VOX_BACKUP_KEEP": ("backup_keep", "14", 14),
    "VOX_BACKUP_KEY_ID": ("backup_key_id", "AKIA", "AKIA"),
    "VOX_BACKUP_SECRET": ("backup_secret", SECRET, SecretStr(SECRET)),
    "VOX_BACKUP_REGION": ("backup_region", "eu-central-1", "eu-central-1"),
    "VOX_SPOOL_MAX_BYTES": ("spool_max_bytes", "8192", 8_192),
}


def approve(path: Path) -> None:
    """Do as `vox-mesh trust` does."""
    file = read_env_file(path)
    assert file is not None
    trust(file)


def test_the_table_here_has_every_variable() -> None:
    assert set(READ) == {variable_of(field) for field in Settings.model_fields} == set(EXAMPLES)


@pytest.mark.parametrize("variable", READ)
@pytest.mark.parametrize("source", ["environment", ".env"])
def test_every_variable_is_read(variable: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field, text, expected = READ[variable]
    assert getattr(load_process_settings(), field) != expected
    if source == "environment":
        monkeypatch.setenv(variable, text)
    else:
        Path(".env").write_text(f"{variable}={text}\n")
        approve(Path(".env"))
    assert getattr(load_process_settings(), field) == expected


@pytest.mark.parametrize(
    ("variable", "second"), [("VOX_DB_URL", "TURSO_DATABASE_URL"), ("VOX_DB_TOKEN", "TURSO_AUTH_TOKEN")]
)
def test_the_names_that_turso_uses_are_second_names(
    variable: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, text, expected = READ[variable]
    monkeypatch.setenv(second, text)
    assert getattr(load_settings(), field) == expected
    monkeypatch.setenv(variable, "libsql://first.turso.io")
    found = getattr(load_settings(), field)
    assert (found.get_secret_value() if isinstance(found, SecretStr) else found) == "libsql://first.turso.io"


def test_the_environment_comes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("VOX_MESH_NODE_ID=from-file\nUNKNOWN=1\n")
    assert load_settings().node_id == "from-file"
    monkeypatch.setenv("VOX_MESH_NODE_ID", "from-environment")
    assert load_settings().node_id == "from-environment"


@pytest.mark.parametrize("variable", READ)
def test_an_empty_variable_is_an_unset_one(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    assert load_settings() == Settings()


@pytest.mark.parametrize("variable", EXAMPLES)
def test_every_example_is_valid(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, EXAMPLES[variable])
    load_process_settings()


BAD = [
    ("VOX_MESH_ENABLED", "perhaps", "boolean"),
    ("VOX_MESH_NODE", "/run/agents.sock", "unix:PATH"),
    ("VOX_MESH_NODE_ID", "-x", "letters"),
    ("VOX_MESH_NODE_ID", "../up", "letters"),
    ("VOX_MESH_NODE_ID", "x" * 65, "64"),
    ("VOX_MESH_SCOPE_ID", "x" * 65, "64"),
    ("VOX_MESH_REPOSITORY_ID", "a b", "letters"),
    ("VOX_AGENT_ID", "x" * 129, "128"),
    ("VOX_LOG_FORMAT", "xml", "'text' or 'json'"),
    ("VOX_DB_URL", "postgres://x", "'postgres'"),
    ("VOX_DB_URL", "my-db.turso.io", "scheme"),
    ("VOX_DB_URL", "/a/path", "scheme"),
    ("VOX_DB_URL", "libsql://", "host"),
    ("VOX_DB_URL", "http://127.0.0.1:99999", "port"),
    ("VOX_DB_URL", "http://127.0.0.1:x", "port"),
    ("VOX_DB_URL", "file:", "path"),
    ("VOX_DB_URL", "http://[::1", "IPv6"),
    ("VOX_DB_URL", f"libsql://x.turso.io?authToken={SECRET}", "VOX_DB_TOKEN"),
    ("VOX_DB_URL", f"libsql://x.turso.io?jwt={SECRET}", "query"),
    ("VOX_DB_URL", f"libsql://{SECRET}@x.turso.io", "VOX_DB_TOKEN"),
    ("VOX_DB_URL", f"libsql://me:{SECRET}@x.turso.io", "VOX_DB_TOKEN"),
    ("TURSO_DATABASE_URL", "mysql://x", "'mysql'"),
    ("VOX_DB_DRIVER", "odbc", "'auto'"),
    ("VOX_DB_CIRCUIT_BREAKER", "2", "boolean"),
    ("VOX_DB_ALLOW_PLAINTEXT", "maybe", "boolean"),
    ("VOX_DB_DEADLINE", "soon", "not a duration"),
    ("VOX_DB_DEADLINE", "0s", "0.001"),
    ("VOX_DB_DEADLINE", "11m", "600"),
    ("VOX_DB_REQUEST_TIMEOUT", "1.5 s", "not a duration"),
    ("VOX_SPOOL_MAX_BYTES", "4095", "4096"),
    ("VOX_SPOOL_MAX_BYTES", "64MB", "integer"),
]


@pytest.mark.parametrize(("variable", "value", "fault"), BAD)
def test_a_bad_value_is_reported_in_one_line_with_an_example(
    variable: str, value: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings) as bad:
        load_settings()
    line = bad.value.line
    assert line.startswith(f"{variable}: ")
    assert fault in line
    assert f"for example {variable}=" in line
    assert "\n" not in line
    assert SECRET not in line
    assert bad.value.__cause__ is None


def test_a_bad_override_is_reported_by_the_name_of_its_variable() -> None:
    with pytest.raises(BadSettings, match="VOX_DB_DRIVER: "):
        load_settings(db_driver="odbc")


def test_no_secret_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOX_MESH_TOKEN", STRONG)
    monkeypatch.setenv("VOX_DB_TOKEN", SECRET)
    settings = load_settings()
    shown = [repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())]
    assert all(SECRET not in text for text in shown)
    monkeypatch.setenv("VOX_DB_DRIVER", "odbc")
    with pytest.raises(BadSettings) as bad:
        load_settings()
    assert SECRET not in f"{bad.value!r} {bad.value.line}"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("libsql://x.turso.io", "https://x.turso.io"),
        ("libsql://x.turso.io?tls=1", "https://x.turso.io"),
        ("libsql://127.0.0.1:8080?tls=0", "http://127.0.0.1:8080"),
        ("https://x.turso.io/", "https://x.turso.io"),
        ("wss://x.turso.io:443", "https://x.turso.io:443"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("ws://[::1]:8080", "http://[::1]:8080"),
        ("https://gateway.example/db/", "https://gateway.example/db"),
    ],
)
def test_every_scheme_leads_to_an_endpoint(url: str, endpoint: str) -> None:
    settings = load_settings(enabled=True, db_url=url)
    assert (settings.backend, settings.endpoint) == (Backend.SERVER, endpoint)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:local.db", "local.db"),
        ("file:/var/vox.db", "/var/vox.db"),
        ("file:///var/vox.db", "/var/vox.db"),
        ("file://localhost/var/vox.db", "/var/vox.db"),
        ("file:a%20b.db", "a b.db"),
    ],
)
def test_a_file_url_is_the_file_home(url: str, path: str) -> None:
    settings = load_settings(enabled=True, db_url=url, db_token=SECRET)
    assert (settings.backend, settings.file_path) == (Backend.FILE, Path(path))
    with pytest.raises(BadSettings, match="VOX_DB_URL"):
        _ = settings.endpoint


@pytest.mark.parametrize(
    ("values", "backend"),
    [
        ({}, Backend.MEMORY),
        ({"db_url": "libsql://x.turso.io"}, Backend.MEMORY),
        ({"enabled": True}, Backend.FILE),
        ({"enabled": True, "db_url": "libsql://x.turso.io"}, Backend.SERVER),
    ],
)
def test_the_backend_is_chosen_by_two_variables(values: dict[str, Any], backend: Backend) -> None:
    assert load_settings(**values).backend is backend


@pytest.mark.parametrize("url", ["http://db.example", "ws://10.0.0.7:8080", "libsql://db.example?tls=0"])
def test_a_token_does_not_travel_in_plain_text(url: str) -> None:
    load_settings(enabled=True, db_url=url)
    with pytest.raises(BadSettings, match=r"VOX_DB_URL: .*unencrypted") as bad:
        load_settings(enabled=True, db_url=url, db_token=SECRET)
    assert "VOX_DB_ALLOW_PLAINTEXT=1" in bad.value.line
    load_settings(enabled=True, db_url=url, db_token=SECRET, db_allow_plaintext=True)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "ws://127.9.9.9",
        "http://[::1]:8080",
        "http://localhost:8080",
        "https://db.example",
    ],
)
def test_on_this_machine_or_encrypted_a_token_may_travel(url: str) -> None:
    load_settings(enabled=True, db_url=url, db_token=SECRET)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_settings_do_not_change_once_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().enabled = True  # type: ignore[misc]
