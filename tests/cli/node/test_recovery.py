"""`vox-mesh roles recover`: the owner's disk is lost, and another machine takes over."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand, running_node
from tests.cli.terminals import terminal


@pytest.fixture
def machines(tmp_path: Path) -> tuple[VoxCommand, VoxCommand]:
    """Two machines, each with a home of its own, and one database."""
    folders = (tmp_path / "first", tmp_path / "second")
    for folder in folders:
        folder.mkdir()
    first, second = (
        VoxCommand.with_home(folder, VOX_DB_PATH=str(tmp_path / "shared.db")) for folder in folders
    )
    return first, second


def test_another_machine_becomes_the_owner_with_the_recovery_key(
    machines: tuple[VoxCommand, VoxCommand], tmp_path: Path
) -> None:
    (first, second), key, following = machines, tmp_path / "key", tmp_path / "next"
    inside = first("init", "--recovery-key-file", ".vox/key")
    assert (inside.code, "would be lost with it" in inside.err) == (2, True)
    assert first("init", "--recovery-key-file", str(key)).code == 0
    assert key.stat().st_mode & 0o777 == 0o600
    again = first("init", "--recovery-key-file", str(tmp_path / "other"))
    assert (again.code, "no recovery key made: the mesh has an owner" in again.err) == (0, True)
    with running_node(first) as owner:
        assert first("route", "set", "a.b", owner.node_id).code == 0
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != key]
    assert not any(key.read_bytes().strip() in text for text in texts)
    shutil.rmtree(first.folder)
    recover = ("roles", "recover", "--recovery-key-file", str(key))
    shown = second(*recover)
    assert (shown.code, "may be logged" in shown.error) == (2, True)
    with running_node(second) as node:
        assert second("route", "set", "c.d", node.node_id).code == 1
        (tmp_path / "wrong").write_text(key.read_text()[:-3])
        wrong = second(*recover[:3], str(tmp_path / "wrong"), "--new-recovery-key-file", str(following))
        assert (wrong.code, "recovery key can't be read" in wrong.error) == (2, True)
        done = second(*recover, "--new-recovery-key-file", str(following), "--json").document
        assert (done["node_id"], following.stat().st_mode & 0o777) == (node.node_id, 0o600)
        assert second("route", "set", "c.d", node.node_id).code == 0
        assert second("nodes", "remove", owner.node_id).code == 0
    shown_roles = second("roles", "show", "--json").document
    assert shown_roles["owner"]["public_key"] == done["public_key"]
    assert shown_roles["routes"] == {"a.b": owner.node_id, "c.d": node.node_id}
    assert second("oplog", "verify", "--owner-key", done["public_key"]).code == 0
    replaced = second("roles", "recovery-key", "--recovery-key-file", str(tmp_path / "third"), "--json")
    assert replaced.document["recovery_key_file"] == str(tmp_path / "third")
    used = second.having(VOX_MESH_NODE_ID="third")(
        *(*recover[:3], str(following), "--new-recovery-key-file", str(tmp_path / "fourth"))
    )
    assert (used.code, "not the one in force" in used.error) == (2, True)
    assert not (tmp_path / "fourth").exists()


def test_the_ownership_is_offered_and_accepted(
    machines: tuple[VoxCommand, VoxCommand], tmp_path: Path
) -> None:
    (first, second), key = machines, tmp_path / "key"
    accept = ("roles", "accept-ownership", "--recovery-key-file", str(key), "--json")
    with running_node(first) as owner, running_node(second) as heir:
        early = second(*accept)
        assert (early.code, "has not offered it" in early.err, key.exists()) == (1, True, False)
        offered = first("roles", "transfer-ownership", heir.node_id, "--json").document
        assert offered == {
            "op_id": offered["op_id"],
            "node_id": heir.node_id,
            "role": "owner",
            "accepted": False,
        }
        assert first("roles", "show", "--json").document["owner"]["node_id"] == owner.node_id
        assert second(*accept).document["node_id"] == heir.node_id
        assert first("roles", "show", "--json").document["owner"]["node_id"] == heir.node_id


def test_on_a_terminal_the_key_is_shown_once_and_not_echoed(machines: tuple[VoxCommand, VoxCommand]) -> None:
    first, second = machines
    with terminal(first, "init") as screen:
        shown = screen.shows("recovery key of the mesh", "take the mesh over").decode()
        assert screen.ended() == 0
    key = re.findall(r"voxr(?:-\w{4}){8}", shown)[0]
    with terminal(first, "init") as screen:
        assert screen.ended() == 0
        assert b"voxr" not in screen.shown
    with terminal(second, "roles", "recover") as screen:
        screen.shows("recovery key:")
        screen.type(f"{key}\n")
        shown = screen.shows("take the mesh over").decode()
        assert screen.ended() == 0
    assert key not in shown
    assert re.findall(r"voxr(?:-\w{4}){8}", shown)
