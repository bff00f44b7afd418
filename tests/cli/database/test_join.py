"""`vox-mesh join`: the second machine is set up by one command, which keeps the token secret."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import Ended, VoxCommand
from tools.sqld import Server
from vox_mesh.settings.env_writer import merged

_UNREACHABLE = "http://127.0.0.1:9"


def _join(vox: VoxCommand, server: Server, *options: str, token: str | None = None) -> Ended:
    (vox.folder / "given.token").write_text(server.token if token is None else token)
    return vox("join", server.url, "--token-file", "given.token", *options)


def test_after_it_commands_use_the_server(memory: VoxCommand, server: Server) -> None:
    joined = _join(memory, server, "--json")
    assert joined.code == 0, joined
    assert joined.document["server"] == server.url
    assert joined.document["live_nodes"] == 0
    assert memory("nodes", "--json").document == []
    assert memory("db", "status", "--json").document["address"] == server.url
    checks = memory("doctor", "--json").document
    assert "VOX_DB_TOKEN_FILE" not in str(checks)


def test_what_it_writes_is_private_and_holds_the_token_in_one_place(
    memory: VoxCommand, server: Server
) -> None:
    (memory.folder / ".env").write_text("API=1\nVOX_DB_TOKEN=old\n")
    assert memory("trust").code == 0
    assert _join(memory, server).code == 0
    env_file, token = memory.folder / ".env", memory.folder / ".vox" / "db-token"
    assert [path.stat().st_mode & 0o077 for path in (env_file, token, token.parent)] == [0, 0, 0]
    assert token.read_text().strip() == server.token
    assert env_file.read_text().splitlines() == [
        "API=1",
        "VOX_MESH_ENABLED=1",
        f"VOX_DB_URL={server.url}",
        "VOX_DB_TOKEN_FILE=.vox/db-token",
    ]


def test_the_token_is_read_from_standard_input(memory: VoxCommand, server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "vox_mesh.cli", "join", server.url],
        input=f"{server.token}\n",
        cwd=memory.folder,
        env=memory.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert server.token not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("url", "token", "code", "named"),
    [
        (None, "not-a-token", 2, "refused the token"),
        (None, "", 2, "token"),
        (None, "two words", 2, "without spaces"),
        (_UNREACHABLE, "some-token", 3, "can't be reached"),
        ("http://db.example.com", "some-token", 2, "VOX_DB_ALLOW_PLAINTEXT"),
        ("nonsense", "some-token", 2, "VOX_DB_URL"),
    ],
)
def test_nothing_is_written_if_it_can_not_join(
    memory: VoxCommand, server: Server, url: str | None, token: str, code: int, named: str
) -> None:
    (memory.folder / "given.token").write_text(token)
    ended = memory.having(VOX_DB_DEADLINE="2s")("join", url or server.url, "--token-file", "given.token")
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1), ended
    assert named in ended.error
    assert {path.name for path in memory.folder.iterdir()} - {".vox"} == {"given.token"}
    assert not (memory.folder / ".vox" / "db-token").exists()


def test_another_server_is_left_only_if_asked(memory: VoxCommand, server: Server) -> None:
    (memory.folder / ".env").write_text(f"VOX_DB_URL={_UNREACHABLE}\n")
    assert memory("trust").code == 0
    refused = _join(memory, server)
    assert (refused.code, "--replace" in refused.error) == (2, True)
    assert _join(memory, server, "--replace").code == 0


def test_settings_that_were_not_approved_are_not_approved_unread(memory: VoxCommand, server: Server) -> None:
    (memory.folder / ".env").write_text("VOX_WORKER_EXEC=1\n")
    ended = _join(memory, server)
    assert (ended.code, "vox-mesh trust" in ended.error) == (2, True)
    assert (memory.folder / ".env").read_text() == "VOX_WORKER_EXEC=1\n"
    assert not (memory.folder / ".vox" / "db-token").exists()


def test_a_home_that_is_a_link_gets_no_token(memory: VoxCommand, server: Server) -> None:
    elsewhere = memory.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (memory.folder / ".vox").symlink_to(elsewhere)
    ended = _join(memory, server)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert not [*elsewhere.iterdir()]


def test_lines_of_others_stay_as_they_are() -> None:
    text = "# mine\nexport VOX_DB_URL = x\nvox_db_token=y\nOTHER='a b'\n"
    assert merged(text, {"VOX_DB_URL": "z"}, ("VOX_DB_TOKEN",)) == "# mine\nOTHER='a b'\nVOX_DB_URL=z\n"
