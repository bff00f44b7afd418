"""A folder that another person prepared can't take tokens, run commands or overwrite files."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.runtime.test_settings import approve
from tests.support.running.confined import IS_ROOT, OTHER_USER
from vox_mesh import load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.runtime import home_check
from vox_mesh.settings.discovery import locate_mesh
from vox_mesh.settings.env_writer import with_variables
from vox_mesh.settings.trust import read_env_file

_TOKEN: Final = "eyJ-the-token-of-the-user"
as_root: Final = pytest.mark.skipif(not IS_ROOT, reason="only root can give files to another user")


class Thief:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        heard = self.heard = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(str(self.headers))
                self.send_error(404)

            do_POST = do_GET  # noqa: N815 - as the library calls it

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def thief() -> Iterator[Thief]:
    """A server of the attacker."""
    server = Thief()
    yield server
    server.close()


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands in a folder that an attacker can prepare; the user's own configuration is elsewhere."""
    folder = tmp_path / "cloned"
    folder.mkdir()
    return VoxCommand(folder, XDG_CONFIG_HOME=str(tmp_path / "config"))


# --- .env ----------------------------------------------------------------------------------------


def test_a_folder_can_t_send_the_user_s_token_to_a_server_of_its_own(vox: VoxCommand, thief: Thief) -> None:
    (vox.folder / ".env").write_text(f"VOX_MESH_ENABLED=1\nVOX_DB_URL={thief.url}\nVOX_DB_DRIVER=http\n")
    refused = vox.having(VOX_DB_TOKEN=_TOKEN)("db", "status")
    assert (refused.code, thief.heard) == (2, [])
    assert ".env sets VOX_DB_URL: not used, because you have not approved this file" in refused.error
    assert "vox-mesh trust" in refused.error
    # Approved, it is used; a later change needs another approval.
    approved = vox("trust", "--json")
    assert approved.document["settings"] == ["VOX_DB_DRIVER", "VOX_DB_URL", "VOX_MESH_ENABLED"]
    assert vox.having(VOX_DB_TOKEN=_TOKEN)("db", "status").code in (1, 3)
    assert any(_TOKEN in headers for headers in thief.heard)
    heard = len(thief.heard)
    with (vox.folder / ".env").open("a") as file:
        file.write("VOX_WORKER_EXEC=1\n")
    assert vox("db", "status").code == 2
    assert vox("trust").code == 0
    assert vox("trust", "--undo", "--json").document["was_trusted"] is True
    assert vox("db", "status").code == 2
    assert len(thief.heard) == heard


@pytest.mark.parametrize(
    "line",
    [
        "VOX_WORKER_EXEC=1",
        "VOX_WORKER_EXEC_ALLOW=sh ...",
        "VOX_MESH_BIND=0.0.0.0:7400",
        "VOX_MESH_CONTROL_ADDR=http://evil:1",
        "VOX_MESH_TOKEN=one-that-the-attacker-knows",
        "VOX_MESH_TOKEN_FILE=/etc/hostname",
        "VOX_MESH_HOME=/tmp/elsewhere",
        "VOX_DB_PATH=/tmp/elsewhere.db",
        "VOX_DB_ALLOW_PLAINTEXT=1",
        "VOX_MESH_RATES=/etc/passwd",
        "vox_db_url=http://evil",
        "export VOX_DB_URL=http://evil",
    ],
)
def test_what_decides_over_servers_tokens_commands_and_files_needs_approval(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path(".env").write_text(f"VOX_AGENT_ID=planner\n{line}\n")
    with pytest.raises(BadSettings, match="you have not approved this file"):
        load_settings()


def test_the_names_of_turso_in_a_file_belong_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "TURSO_DATABASE_URL=libsql://app.turso.io\nTURSO_AUTH_TOKEN=of-the-app\nVOX_AGENT_ID=planner\n"
    Path(".env").write_text(f"{lines}TURSO_AUTH_TOKEN_FILE=/etc/hostname\n")
    for _ in range(2):  # also after an approval
        settings = load_settings()
        assert (settings.db_url, settings.db_token, settings.agent_id) == (None, None, "planner")
        approve(Path(".env"))


def test_an_exported_variable_wins_over_a_file_also_if_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("VOX_DB_URL=http://evil\nVOX_DB_TOKEN=of-the-file\nVOX_AGENT_ID=planner\n")
    for name in ("VOX_DB_URL", "VOX_DB_TOKEN", "VOX_AGENT_ID"):
        monkeypatch.setenv(name, "")
    settings = load_settings()
    assert (settings.db_url, settings.db_token, settings.agent_id) == (None, None, None)


def test_names_of_fields_are_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "of-something-else")
    Path(".env").write_text("worker_exec=1\ndb_url=http://evil\n")
    settings = load_settings()
    assert (settings.worker_exec, settings.db_url, settings.token) == (False, None, None)


def test_what_the_environment_sets_needs_no_approval_and_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("VOX_DB_URL=http://evil\nVOX_AGENT_ID=planner\n")
    monkeypatch.setenv("TURSO_DATABASE_URL", "libsql://mine.turso.io")
    settings = load_settings()
    assert (settings.db_url, settings.agent_id) == ("libsql://mine.turso.io", "planner")


def test_a_file_without_approval_can_t_copy_a_secret_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOX_DB_TOKEN", _TOKEN)
    Path(".env").write_text("VOX_AGENT_ID=${VOX_DB_TOKEN}\n")
    assert load_settings().agent_id == "${VOX_DB_TOKEN}"


@pytest.mark.parametrize(
    "hidden",
    [
        'NOTE="\nVOX_WORKER_EXEC=1\nVOX_DB_URL="\n',  # the line that closes the quote is replaced
        "NOTE='\nVOX_WORKER_EXEC=1\nexport VOX_DB_TOKEN='\n",  # and here removed
        "vox_agent_id=${HOME}\n",  # an approved file may refer to the environment
        'NOTE="\n',  # it would swallow the new settings
    ],
)
def test_joining_a_mesh_approves_no_setting_that_the_folder_brought(hidden: str) -> None:
    file = Path(".env")
    file.write_text(hidden)
    with pytest.raises(BadSettings, match=r"not approved|can't be kept"):
        with_variables(file, {"VOX_DB_URL": 'https://db.example.com/"'}, removed=("VOX_DB_TOKEN",))
    assert file.read_text() == hidden
    found = read_env_file(file)
    assert found is not None
    assert not found.is_trusted


@pytest.mark.parametrize("fault", ["group", "world", pytest.param("owner", marks=as_root)])
def test_a_file_that_others_may_have_written_is_refused_as_a_whole(vox: VoxCommand, fault: str) -> None:
    file = vox.folder / ".env"
    file.write_text("VOX_AGENT_ID=mallory\n")
    if fault == "owner":
        os.chown(file, OTHER_USER, OTHER_USER)
    else:
        file.chmod(0o664 if fault == "group" else 0o646)
    for command in (("db", "status"), ("trust",)):
        refused = vox(*command)
        assert refused.code == 2
        expected = "belongs to another user" if fault == "owner" else "can be written by other users"
        assert expected in refused.error


def test_a_pipe_or_an_endless_file_keeps_no_command_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    for name in ("pipe", "large"):
        with pytest.raises(BadSettings, match="at most 1 MiB"):
            load_settings(_env_file=tmp_path / name)


@as_root
def test_a_link_of_another_user_is_not_followed_to_a_file_of_ours(vox: VoxCommand, tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("VOX_AGENT_ID=other\n")
    (vox.folder / ".env").symlink_to(tmp_path / "ours")
    os.chown(vox.folder / ".env", OTHER_USER, OTHER_USER, follow_symlinks=False)
    assert "belongs to another user" in vox("db", "status").error


# --- .vox ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link", [".vox/slots/1/lock", ".vox/slots/1/writer.new", ".vox/cache/db/local.db", ".vox/slots/1", ".vox"]
)
def test_a_link_in_the_home_overwrites_nothing(link: str, vox: VoxCommand, tmp_path: Path) -> None:
    """As a cloned repository brings it: all files belong to the user."""
    victim = tmp_path / "victim"
    if link in (".vox", ".vox/slots/1"):
        victim.mkdir()
    else:
        victim.write_text("")
        victim.write_text("precious" if "local.db" not in link else "")
    path = vox.folder / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(victim)
    before = victim.read_bytes() if victim.is_file() else sorted(victim.iterdir())
    refused = vox.having(VOX_MESH_ENABLED="1")("up", "--once", "--no-http")
    assert (victim.read_bytes() if victim.is_file() else sorted(victim.iterdir())) == before
    assert (refused.code, f"{link} is a symbolic link" in refused.error) == (2, True)
    command = vox.having(VOX_MESH_ENABLED="1")("lock", "acquire", "task:a", "--agent", "ada")
    assert (command.code, "is a symbolic link" in command.error) == (2, True)


def test_a_home_by_an_absolute_path_may_lead_through_a_link(vox: VoxCommand, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    chosen = vox.having(VOX_MESH_ENABLED="1", VOX_MESH_HOME=str(tmp_path / "link" / "home"))
    assert chosen.having(VOX_DB_PATH=str(tmp_path / "link" / "a.db"))("db", "init").code == 0


@pytest.mark.parametrize("fault", ["world", pytest.param("owner", marks=as_root)])
@pytest.mark.parametrize("place", [".vox", ".vox/slots", ".vox/cache/db"])
def test_a_home_that_others_may_have_prepared_is_refused(fault: str, place: str, vox: VoxCommand) -> None:
    folder = vox.folder / place
    folder.mkdir(parents=True, mode=0o755)
    if fault == "owner":
        os.chown(folder, OTHER_USER, OTHER_USER)
    else:
        folder.chmod(0o777)
    refused = vox.having(VOX_MESH_ENABLED="1")("up", "--once", "--no-http")
    assert refused.code == 2
    expected = "belongs to another user" if fault == "owner" else "can be written by other users"
    assert f"{place} {expected}" in refused.error


def test_a_file_of_another_process_may_vanish_while_the_home_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "slots").mkdir(parents=True, mode=0o700)
    (home / "slots" / "journal").touch()

    def vanish(path: Path) -> bool:
        if path.name == "journal":
            path.unlink()
        return False

    monkeypatch.setattr(home_check, "is_link", vanish)
    home_check.refuse_unsafe_home(home, home / "local.db")
    assert not (home / "slots" / "journal").exists()


@pytest.mark.parametrize("fault", ["link", "world", pytest.param("owner", marks=as_root)])
def test_a_mesh_above_that_others_may_have_prepared_is_refused(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below, home = tmp_path / "a" / "b", tmp_path / "a" / ".vox"
    below.mkdir(parents=True)
    (tmp_path / "theirs").mkdir(mode=0o700)
    if fault == "link":
        home.symlink_to(tmp_path / "theirs")
    else:
        home.mkdir(mode=0o700)
    if fault == "owner":
        os.chown(home, OTHER_USER, OTHER_USER)
    elif fault == "world":
        home.chmod(0o777)
    monkeypatch.chdir(below)
    with pytest.raises(BadSettings, match=r"symbolic link|other user|another user"):
        locate_mesh()


def test_a_node_runs_no_job_of_a_mesh_that_its_folder_brought(vox: VoxCommand, tmp_path: Path) -> None:
    """As a repository brings it: git also replaces files that it ignores, so also by a later pull."""
    theirs = VoxCommand(tmp_path / "theirs", XDG_CONFIG_HOME=str(tmp_path / "their-config"))
    theirs.folder.mkdir()
    assert theirs("init").code == 0
    assert theirs("job", "schedule", "--", "touch", str(tmp_path / "ran")).code == 0
    run = ("up", "--once", "--no-http", "--worker-exec")
    database = Path(".vox/cache/db/local.db")
    (vox.folder / database.parent).mkdir(parents=True)
    for name in (database, Path(".vox/mesh.json")):
        shutil.copyfile(theirs.folder / name, vox.folder / name)
    checked = vox("init", "--json")
    assert (checked.document["done"], "was not made by you" in checked.err) == ("checked", True)
    assert "was not made by you" in vox("doctor").out
    refused = vox(*run)
    assert (refused.code, f"{database} was not made by you" in refused.error) == (2, True)
    shutil.rmtree(vox.folder / ".vox")
    created = vox("init", "--json")
    assert (created.document["done"], created.err) == ("created", "")
    assert vox(*run).code == 0
    shutil.copyfile(theirs.folder / database, vox.folder / "pulled")
    (vox.folder / "pulled").replace(vox.folder / database)
    assert (vox(*run).code, (tmp_path / "ran").exists()) == (2, False)
    assert vox("trust", "--mesh").code == 0
    assert (vox(*run).code, (tmp_path / "ran").exists()) == (0, True)


def test_a_node_sends_no_writes_that_its_folder_brought(vox: VoxCommand) -> None:
    own = vox.having(VOX_MESH_ENABLED="1", VOX_DB_URL="http://127.0.0.1:9", VOX_DB_DEADLINE="1s")
    spool = vox.folder / ".vox/slots/1/spool-0123456789ab.db"
    spool.parent.mkdir(parents=True)
    spool.touch()
    refused = own("up", "--once", "--no-http")
    assert (refused.code, ".vox was not made by you" in refused.error) == (2, True)
    chosen = own.having(VOX_MESH_HOME=str(vox.folder / ".vox"))("up", "--once", "--no-http")
    assert "not made by you" not in chosen.err


def test_agents_in_two_worktrees_share_one_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two meshes would both grant the lock on a file, and no agent would notice."""
    private = tmp_path / "main/.git/worktrees/linked"
    private.mkdir(parents=True)
    (private / "commondir").write_text("../..\n")
    (tmp_path / "linked/src").mkdir(parents=True)
    (tmp_path / "linked/.git").write_text(f"gitdir: {private}\n")
    for folder in ("main", "linked", "linked/src"):
        monkeypatch.chdir(tmp_path / folder)
        settings = load_settings(enabled=True)
        assert settings.home_dir.absolute() == tmp_path / "main/.vox"
        assert settings.file_path.absolute() == tmp_path / "main/.vox/cache/db/local.db"
