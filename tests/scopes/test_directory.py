"""The directory of scopes: what it may hold, and the settings of each scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scopes.conftest import process_settings
from vox_mesh import Settings, load_settings
from vox_mesh.errors import BadSettings, NotKnown
from vox_mesh.runtime.scopes import settings_of_scopes

_SECRET = "s3cret-s3cret"


def test_each_scope_has_its_own_database_home_and_token(tmp_path: Path) -> None:
    (tmp_path / "west.token").write_text(_SECRET)
    (tmp_path / "scopes").write_text(
        "# ours\n\nwest=https://a.example.com,west.token\neast=file:/srv/east.db\n"
    )
    settings = process_settings(tmp_path, str(tmp_path / "scopes"))
    west, east = settings.in_scope("west"), settings.in_scope("east")
    assert (west.scope_id, west.endpoint) == ("west", "https://a.example.com")
    assert west.db_token is not None
    assert west.db_token.get_secret_value() == _SECRET
    assert (east.scope_id, east.file_path, east.db_token) == ("east", Path("/srv/east.db"), None)
    assert west.home_dir != east.home_dir != settings.home_dir
    assert _SECRET not in repr(west) + repr(settings)


def test_the_token_of_the_process_is_sent_to_no_scope(tmp_path: Path) -> None:
    settings = process_settings(tmp_path, "west=https://a.example.com").model_copy(
        update={"db_token": _SECRET}
    )
    assert settings.in_scope("west").db_token is None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("west", "entry 1 must be SCOPE=URL or SCOPE=URL,TOKEN_FILE"),
        ("we@st=file:/x", "entry 1 must be"),
        ("west=file:/a west=file:/b", "scope west has more than one entry"),
        (f"west=https://u:{_SECRET}@a.example.com", "scope west: the URL must not hold the token"),
        (f"west=https://a.example.com?authToken={_SECRET}", "scope west: the URL must not hold the token"),
        ("west=ftp://a.example.com", "scope west: the scheme must be"),
        ("./missing", "missing can't be read: No such file or directory"),
        (" ", "must have 1 to 1000 entries, got 0"),
    ],
)
def test_a_wrong_directory_is_one_clear_line_without_secrets(value: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as raised:
        process_settings(tmp_path, value)
    assert fault in raised.value.line
    assert raised.value.line.startswith("VOX_DB_URLS: ")
    assert _SECRET not in raised.value.line
    assert "\n" not in raised.value.line


def test_a_token_is_not_sent_unencrypted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(_SECRET)
    settings = process_settings(tmp_path, f"west=http://a.example.com,{tmp_path / 'token'}")
    with pytest.raises(BadSettings, match=r"the token would be sent unencrypted to a\.example\.com"):
        settings.in_scope("west")


def test_a_process_of_one_scope_has_its_settings(tmp_path: Path) -> None:
    urls = "west=file:/srv/west.db east=file:/srv/east.db"
    settings = load_settings(_env_file=None, db_urls=urls, scope_id="east", home_dir=tmp_path)
    assert settings.file_path == Path("/srv/east.db")
    with pytest.raises(NotKnown, match="scope 'mars' not found in VOX_DB_URLS"):
        load_settings(_env_file=None, db_urls=urls, scope_id="mars")
    with pytest.raises(BadSettings, match="no scope given"):
        load_settings(_env_file=None, db_urls=urls)


def test_scopes_of_one_node_listen_on_consecutive_ports(on_files: Settings) -> None:
    given = {"control_addr": "http://10.0.0.7:7400", "bind": "0.0.0.0:8400"}
    west, east = settings_of_scopes(on_files.model_copy(update=given), ["west", "east", "west"])
    assert (west.control_addr, west.bind) == ("http://10.0.0.7:7400", "0.0.0.0:8400")
    assert (east.control_addr, east.bind) == ("http://10.0.0.7:7401", "0.0.0.0:8401")
    with pytest.raises(BadSettings, match="VOX_MESH_CONTROL_ADDR has no port for each scope"):
        settings_of_scopes(
            on_files.model_copy(update={"control_addr": "https://a.example.com"}), ["west", "east"]
        )


def test_what_belongs_to_one_mesh_is_refused_for_several_scopes(on_files: Settings) -> None:
    pinned = on_files.model_copy(update={"owner_key": "ed25519:" + "ab" * 32})
    with pytest.raises(BadSettings, match="VOX_MESH_OWNER_KEY is of one mesh, and the node serves 2 scopes"):
        settings_of_scopes(pinned, ["west", "east"])
    assert settings_of_scopes(pinned, ["west"])[0].owner_key == pinned.owner_key
