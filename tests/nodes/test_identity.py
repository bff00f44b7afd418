"""Identity: an id and a key that a slot keeps, and that no one else can read."""

from __future__ import annotations

import re
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.running.programs import program
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.keys import is_public_key, is_signed
from vox_mesh.nodes.identity import (
    Identity,
    command_identity,
    node_identity,
    place_of,
    temporary_identity,
)
from vox_mesh.store.slots import take_slot

_KEY = "key.pem"
_THREADS = 8
_ATTEMPTS = 10
_PROCESSES = 4

_WHO = """
import sys
from pathlib import Path
from vox_mesh.nodes.identity import node_identity
print("ready", flush=True)
sys.stdin.read()
identity = node_identity(Path(sys.argv[1]), None)
print(identity.node_id, identity.key.public, flush=True)
"""


def _who(identity: Identity) -> tuple[str, str]:
    return identity.node_id, identity.key.public


def _pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    kept: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        kept = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kept)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a slot will keep its identity."""
    return tmp_path / "home" / "slots" / "1"


def test_the_first_start_makes_a_key_that_its_user_alone_can_read(folder: Path) -> None:
    identity = node_identity(folder, None)
    assert stat.S_IMODE((folder / _KEY).stat().st_mode) == 0o600
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.parents[:2])] == [0o700] * 3
    assert is_public_key(identity.key.public)
    assert is_signed(b"text", identity.key.sign(b"text"), identity.key.public)


def test_nothing_but_the_identity_is_left_in_the_folder(folder: Path) -> None:
    node_identity(folder, None)
    assert {path.name for path in folder.iterdir()} == {"id", _KEY}


def test_an_id_of_its_own_names_host_and_slot_and_is_no_other_slots(folder: Path) -> None:
    first, second = node_identity(folder, None), node_identity(folder.with_name("2"), None)
    assert re.fullmatch(r"[a-z0-9-]+-1-[a-z0-9]{6}", first.node_id)
    assert re.fullmatch(r"[a-z0-9-]+-2-[a-z0-9]{6}", second.node_id)
    assert first.key.public != second.key.public


def test_the_identity_is_the_same_after_a_restart(folder: Path) -> None:
    assert _who(node_identity(folder, None)) == _who(node_identity(folder, None))
    named = folder.with_name("builder-1")
    assert _who(node_identity(named, "builder-1")) == _who(node_identity(named, "builder-1"))


def test_a_given_id_is_used_unchanged(folder: Path) -> None:
    identity = node_identity(folder, "builder-1")
    assert (identity.node_id, identity.chain, identity.is_command) == ("builder-1", "builder-1", False)


def test_a_command_has_its_nodes_key_and_a_chain_of_its_own(folder: Path) -> None:
    command = command_identity(folder, None)  # before any node was here
    node = node_identity(folder, None)
    assert _who(command) == _who(node)
    assert command.chain == f"{node.node_id}/cli"
    assert (command.is_command, node.is_command) == (True, False)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601], ids=oct)
@pytest.mark.parametrize("identity", [node_identity, command_identity])
def test_a_key_that_others_can_get_at_is_refused(
    identity: Callable[[Path, str | None], Identity], mode: int, folder: Path
) -> None:
    node_identity(folder, None)
    path = folder / _KEY
    path.chmod(mode)
    with pytest.raises(BadSettings, match="can be read by others") as refused:
        identity(folder, None)
    assert refused.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    identity(folder, None)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no key at all\n",
        b"\xff\xfe\x00",
        _pem(Ed25519PrivateKey.generate())[:-40],
        _pem(ec.generate_private_key(ec.SECP256R1())),
        _pem(Ed25519PrivateKey.generate(), b"a password"),
    ],
    ids=["empty", "text", "bytes", "cut off", "of another kind", "with a password"],
)
def test_a_file_that_holds_no_usable_ed25519_key_is_refused_and_kept(pem: bytes, folder: Path) -> None:
    node_identity(folder, None)
    (folder / _KEY).write_bytes(pem)
    with pytest.raises(BadSettings, match="holds no Ed25519 key") as refused:
        node_identity(folder, None)
    assert "rekey" in refused.value.hint
    assert (folder / _KEY).read_bytes() == pem, "what it was can still be put right"


def test_threads_that_begin_at_once_end_with_one_identity(folder: Path) -> None:
    begin = threading.Barrier(_THREADS, timeout=30)

    def start(slot: Path) -> tuple[str, str]:
        begin.wait()
        return _who(node_identity(slot, None))

    with ThreadPoolExecutor(_THREADS) as threads:
        for attempt in range(_ATTEMPTS):
            slot = folder.with_name(str(attempt))
            found = list(threads.map(start, [slot] * _THREADS))
            assert found == [_who(node_identity(slot, None))] * _THREADS


def test_processes_that_begin_at_once_end_with_one_identity(folder: Path) -> None:
    with ExitStack() as running:
        started = [running.enter_context(program(_WHO, folder)) for _ in range(_PROCESSES)]
        assert [line for line, _ in started] == ["ready"] * _PROCESSES
        for _, process in started:
            assert process.stdin is not None
            process.stdin.close()
        lines = [process.stdout.readline().split() for _, process in started]
    assert lines == [list(_who(node_identity(folder, None)))] * _PROCESSES


def test_nothing_secret_shows(folder: Path) -> None:
    identity = node_identity(folder, None)
    key = serialization.load_pem_private_key((folder / _KEY).read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    shown = f"{identity!r} {identity} {identity.key!r} {identity.key} {temporary_identity('a')!r}"
    assert identity.node_id in shown
    assert key.private_bytes_raw().hex() not in shown
    assert "PRIVATE" not in shown


def test_a_folder_that_cant_be_used_is_reported_as_a_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadSettings, match="VOX_MESH_HOME"):
        node_identity(tmp_path / "file" / "1", None)


async def test_the_id_of_a_slot_leads_to_that_slot(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with Mesh.open(settings) as first, Mesh.open(settings) as second:
        own = {mesh.identity.node_id: _who(mesh.identity) for mesh in (first, second)}
    for number, (node_id, who) in enumerate(own.items(), start=1):
        named = settings.model_copy(update={"node_id": node_id})
        async with Mesh.open(named) as again:
            assert (again.store.slot_name, _who(again.identity)) == (str(number), who)
            assert again.incarnation == 2
        async with Mesh.open_command(named) as command:
            assert _who(command.identity) == who
    assert {path.name for path in (settings.home_dir / "slots").iterdir()} == {"1", "2"}


async def test_a_command_without_an_id_speaks_for_the_first_slot(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with Mesh.open(settings) as first, Mesh.open(settings), Mesh.open_command(settings) as command:
        assert _who(command.identity) == _who(first.identity)
        assert command.incarnation is None


def test_a_place_is_one_slots_and_no_copys(tmp_path: Path) -> None:
    one, two = take_slot(tmp_path), take_slot(tmp_path)
    places = {place_of(slot.folder) for slot in (one, two)}
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "lock").write_bytes((one.folder / "lock").read_bytes())
    places.add(place_of(copy))
    assert len(places) == 3
    one.release()
    again = take_slot(tmp_path)
    assert place_of(again.folder) in places, "the next process in a slot is in the same place"
    again.release()
    two.release()
