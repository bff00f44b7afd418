"""`vox-mesh token`: keys and tokens in one command, as a real server takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tools.sqld import Server
from vox_mesh import Script, Statement, load_settings, open_store
from vox_mesh.errors import MeshError, Unauthorized
from vox_mesh.model.base.keys import access_token, public_pem
from vox_mesh.nodes.key_file import load_or_create_key
from vox_mesh.settings import Settings

_DAY_S: Final = 86_400


class KeyedServer(Server):
    """The test server with the public keys of another, one after another in its file."""

    def __init__(self, *public_keys: bytes) -> None:
        super().__init__()
        self._public_keys = public_keys

    def key_file(self) -> Path:
        """A file with the public keys of the tokens."""
        path = super().key_file()
        path.write_bytes(b"".join(self._public_keys))
        return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a command has made two keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("sqld.pem", "next.pem"):
        assert VoxCommand(folder)("token", "create", "--ttl", "1d", "--key", name).code == 0
    return folder


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[KeyedServer]:
    """A server that takes tokens of both."""
    with KeyedServer(*((keys / name).read_bytes() for name in ("sqld.pub.pem", "next.pub.pem"))) as server:
        yield server


def made(folder: Path, *options: str) -> str:
    """The token that a command prints."""
    ended = VoxCommand(folder)("token", "create", *options)
    assert ended.code == 0, ended
    return ended.out.strip()


def settings(server: Server, token: str, folder: Path) -> Settings:
    """Settings with this token."""
    return load_settings(
        _env_file=None, enabled=True, home_dir=folder, db_url=server.url, db_token=token, db_replica="off"
    )


@pytest.mark.parametrize("key", ["sqld.pem", "next.pem"])
async def test_a_token_lets_its_bearer_write_with_each_key_of_the_server(
    key: str, keys: Path, server: Server, tmp_path: Path
) -> None:
    token = made(keys, "--ttl", "1h", "--key", key)
    async with await open_store(settings(server, token, tmp_path)) as store:
        await store.write(Script(Statement("CREATE TABLE IF NOT EXISTS written (by TEXT)")))
        await store.write(Script(Statement("INSERT INTO written VALUES (?)", (key,))))
        rows = await store.read("SELECT count(*) FROM written WHERE by = ?", (key,))
        assert rows.value == 1


def test_a_read_only_token_reads_and_cant_write(keys: Path, server: Server, tmp_path: Path) -> None:
    writing = VoxCommand.with_home(tmp_path).at(server, made(keys, "--ttl", "1h", "--key", "sqld.pem"))
    assert writing("db", "init").code == 0
    reading = writing.at(server, made(keys, "--read-only", "--ttl", "30d", "--key", "sqld.pem"))
    assert reading("db", "status", "--json").document["schema_version"]
    checks = {each["check"]: each["state"] for each in reading("doctor", "--json").document}
    assert checks["reachability"] == "ok"
    assert checks["write_access"] == "fail"


async def test_an_expired_token_is_refused(keys: Path, server: Server, tmp_path: Path) -> None:
    key, now = load_or_create_key(keys / "sqld.pem"), int(time.time())
    good = access_token(key, read_only=False, now_s=now - _DAY_S, expires_s=now + _DAY_S)
    async with await open_store(settings(server, good, tmp_path)) as store:
        await store.read("SELECT 1", fresh=True)
    expired = access_token(key, read_only=False, now_s=now - 2 * _DAY_S, expires_s=now - _DAY_S)
    with pytest.raises(Unauthorized):
        await open_store(settings(server, expired, tmp_path))


async def test_a_token_of_another_key_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(MeshError):
        await open_store(settings(server, made(tmp_path, "--ttl", "1h"), tmp_path))


def test_the_private_key_is_its_owners_alone_and_kept(tmp_path: Path) -> None:
    vox = VoxCommand(tmp_path)
    first = vox("token", "create", "--ttl", "1d", "--json").document
    assert first["is_new_key"] is True
    private, public = tmp_path / first["key"], tmp_path / first["public_key"]
    assert private == tmp_path / ".config" / "vox-mesh" / "sqld.pem"
    assert (private.stat().st_mode & 0o777, private.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert public.stat().st_mode & 0o777 == 0o644
    assert public.read_bytes() == public_pem(load_or_create_key(private))
    kept = private.read_bytes()
    public.unlink()
    assert vox("token", "create", "--ttl", "1d", "--json").document["is_new_key"] is False
    assert private.read_bytes() == kept
    assert public.read_bytes() == public_pem(load_or_create_key(private))


def test_a_key_of_an_earlier_version_next_to_a_node_is_used_with_a_warning(tmp_path: Path) -> None:
    vox = VoxCommand.with_home(tmp_path)
    vox("token", "create", "--ttl", "1d", "--key", ".vox/sqld.pem")
    made = vox("token", "create", "--ttl", "1d", "--json")
    assert made.document["key"] == ".vox/sqld.pem"
    assert "move it" in made.err
    assert "sqld.pem can make tokens" in vox("doctor").out


def test_a_public_file_with_more_keys_than_one_is_left_unchanged(tmp_path: Path) -> None:
    made(tmp_path, "--ttl", "1d", "--key", "sqld.pem")
    public = tmp_path / "sqld.pub.pem"
    both = public_pem(load_or_create_key(tmp_path / "next.pem")) + public.read_bytes()
    public.write_bytes(both)
    made(tmp_path, "--ttl", "1d", "--key", "sqld.pem")
    assert public.read_bytes() == both


def test_the_public_half_of_another_key_is_never_written_over(tmp_path: Path) -> None:
    made(tmp_path, "--ttl", "1d", "--key", "sqld.pem")
    public = tmp_path / "sqld.pub.pem"
    first = public.read_bytes()
    refused = VoxCommand(tmp_path)("token", "create", "--ttl", "1d", "--key", "sqld")
    assert refused.code == 2
    assert "sqld.pub.pem does not belong to" in refused.error
    assert not (tmp_path / "sqld").exists()  # nor is an unreported key left
    load_or_create_key(tmp_path / "sqld")
    refused = VoxCommand(tmp_path)("token", "create", "--ttl", "1d", "--key", "sqld")
    assert refused.code == 2
    assert "move the public key away" in refused.error
    assert public.read_bytes() == first


def test_nothing_but_the_token_is_on_stdout_and_its_end_is_reported(tmp_path: Path) -> None:
    ended = VoxCommand(tmp_path)("token", "create", "--read-only", "--ttl", "30d")
    assert ended.out.count("\n") == 1
    assert ended.out.count(".") == 2
    assert "sqld.pub.pem" in ended.err
    assert "valid until" in ended.err
    assert ended.out.strip() not in ended.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "--ttl"),  # a token without an end is no one's wish by mistake
        (("--ttl", "0s"), "between 1s and 3650d"),
        (("--ttl", "9999d"), "between 1s and 3650d"),
        (("--ttl", "soon"), "soon"),
        (("--ttl", "1d", "--key", "text.pem"), "text.pem"),
        (("--ttl", "1d", "--key", "open.pem"), "chmod 600"),
        (("--ttl", "1d", "--key", "text.pem/key.pem"), "--key"),
    ],
)
def test_what_cant_be_done_ends_with_2_and_one_line(
    options: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    for name, mode in (("text.pem", 0o600), ("open.pem", 0o644)):
        (tmp_path / name).write_text("not a key")
        (tmp_path / name).chmod(mode)
    ended = VoxCommand(tmp_path)("token", "create", *options)
    assert ended.code == 2
    assert named in ended.error


def test_a_random_token_is_one_that_the_settings_take_and_never_the_same(tmp_path: Path) -> None:
    first, second = (VoxCommand(tmp_path)("token", "random").out.strip() for _ in range(2))
    assert first != second
    assert len(first) == 64
    assert VoxCommand(tmp_path, VOX_MESH_TOKEN=first)("token", "random", "--json").document["token"] != first
    taken = load_settings(_env_file=None, token=first).token
    assert taken is not None
    assert taken.get_secret_value() == first
