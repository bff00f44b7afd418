"""Rolled-back logs: a log that was cut back, restored or wiped as a whole does not verify as untouched."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import VoxCommand
from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.tampering import NOTE, stranger
from tools.homes import FILE, environment
from vox_mesh import Mesh
from vox_mesh.oplog.export import export_log
from vox_mesh.store import new_key


async def work(shared_mesh: SharedMesh, name: str = "owner") -> None:
    """Have a node append an op, and leave."""
    async with Mesh.open(shared_mesh.settings(name)) as node:
        node.oplog.register(NOTE)
        await node.oplog.append(NOTE.name, {})


async def problems(shared_mesh: SharedMesh) -> list[str]:
    async with Mesh.open_command(shared_mesh.settings("owner")) as command:
        return [each.problem for each in await command.oplog.verify() if each.problem]


async def test_chains_that_were_all_cut_back_are_found_by_what_their_nodes_remember(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    await work(shared_mesh)
    ((kept,),) = hostile.run("SELECT max(id) FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2")
    await work(shared_mesh)
    assert await problems(shared_mesh) == []
    hostile.run("DELETE FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND id > ?3", kept)
    (problem,) = await problems(shared_mesh)
    assert problem.startswith("it ends here, but the memory of node owner recorded entry ")


def _town(folder: Path) -> SharedMesh:
    return SharedMesh(FILE, folder, None, new_key())


def _copy(shared_mesh: SharedMesh, name: str) -> Path:
    """Copy the present database."""
    path = shared_mesh.folder / name
    with closing(sqlite3.connect(shared_mesh.folder / "shared.db")) as database:
        database.execute("VACUUM INTO ?", (str(path),))
    return path


def _remove(shared_mesh: SharedMesh) -> None:
    for path in shared_mesh.folder.glob("shared.db*"):
        path.unlink()


async def test_an_old_database_put_back_is_found(tmp_path: Path) -> None:
    shared_mesh = _town(tmp_path)
    await work(shared_mesh)
    old = _copy(shared_mesh, "old.db")
    await work(shared_mesh)
    _remove(shared_mesh)
    shutil.copy(old, shared_mesh.folder / "shared.db")
    cut, rolled_back = await problems(shared_mesh)
    assert cut.startswith("it ends here, but the memory of node owner recorded entry ")
    assert rolled_back.startswith("the log was rolled back since the memory of node owner recorded: ")


async def test_a_wiped_database_is_found_even_after_a_node_has_begun_another_log(tmp_path: Path) -> None:
    shared_mesh = _town(tmp_path)
    await work(shared_mesh)
    _remove(shared_mesh)
    gone, another = await problems(shared_mesh)
    assert gone.startswith("it ends here, but the memory of node owner recorded entry ")
    assert another.startswith("the log is another one than the memory of node owner recorded")
    await work(shared_mesh)
    found = await problems(shared_mesh)
    assert len(found) == 2
    (kept,) = shared_mesh.folder.rglob("*.replaced.json")
    assert all(f"the memory in {kept}" in each for each in found)
    kept.unlink()  # it was meant to be
    assert await problems(shared_mesh) == []


async def test_an_earlier_export_and_the_owners_key_show_what_no_node_remembers(tmp_path: Path) -> None:
    shared_mesh = _town(tmp_path)
    await work(shared_mesh)
    old = _copy(shared_mesh, "old.db")
    settings = shared_mesh.settings("owner")
    async with Mesh.open(settings) as node:
        await node.oplog.anchor()
        await export_log(node.oplog, *node.store.mesh_id, tmp_path / "then.jsonl")
        key = node.identity.key.public
    auditor = VoxCommand(tmp_path, **environment(settings) | {"VOX_MESH_HOME": str(tmp_path / "auditor")})
    verify = ("oplog", "verify", "--since", "then.jsonl", "--owner-key")
    assert auditor(*verify, key).code == 0
    _remove(shared_mesh)
    shutil.copy(old, shared_mesh.folder / "shared.db")
    assert auditor("oplog", "verify").code == 0  # it can't know
    cut = auditor(*verify, key)
    assert (cut.code, "it ends here, but the export then.jsonl recorded entry" in cut.out) == (1, True)
    _remove(shared_mesh)
    await work(shared_mesh, "another")
    replaced = auditor("oplog", "verify", "--owner-key", key)
    assert (replaced.code, f"no owner of the mesh has the pinned key {key}" in replaced.out) == (1, True)
    other_key = stranger().public
    from_file = auditor("oplog", "verify", "--from-file", "then.jsonl", "--owner-key", other_key)
    assert (from_file.code, f"the owner of the mesh is not {other_key}" in from_file.out) == (1, True)
